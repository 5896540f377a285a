#include "core/ort/environment_settings.hpp"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "core/base/cpu_affinity.hpp"

namespace ortmulti {
namespace {

std::atomic<int> log_severity_of_all{ORT_LOGGING_LEVEL_WARNING};

Ort::ThreadingOptions to_onnxruntime(const GlobalThreadPools& pools, std::shared_ptr<ThreadGroup>& threads) {
  Ort::ThreadingOptions options;
  // Threads that the core makes are there before ONNX Runtime asks for them, so that their number must be known.
  const auto by_the_cores = [&] { return pools.threads ? usable_cores() : threads_per_session(1); };
  const int intra = pools.intra_op_num_threads == 0 ? by_the_cores() : pools.intra_op_num_threads;
  const int inter = pools.inter_op_num_threads == 0 ? by_the_cores() : pools.inter_op_num_threads;
  options.SetGlobalIntraOpNumThreads(intra);
  options.SetGlobalInterOpNumThreads(inter);
  if (pools.threads) {
    threads = ThreadGroup::start(*pools.threads, "global", cpus_for(*pools.threads),
                                 std::max(0, intra - 1) + std::max(0, inter - 1));
    threads->apply_to(options);
  }
  if (pools.allow_spinning) {
    options.SetGlobalSpinControl(*pools.allow_spinning ? 1 : 0);
  }
  if (pools.denormal_as_zero) {
    options.SetGlobalDenormalAsZero();
  }
  if (!pools.intra_op_affinity.empty()) {
    // The C++ API has no wrapper for this one.
    Ort::ThrowOnError(Ort::GetApi().SetGlobalIntraOpThreadAffinity(options, pools.intra_op_affinity.c_str()));
  }
  return options;
}

}  // namespace

const ArenaConfig* arena_of(const EnvironmentSettings& settings, const Device& device) {
  auto found = settings.arenas.find(to_string(device));
  found = found == settings.arenas.end() ? settings.arenas.find("") : found;
  return found == settings.arenas.end() ? nullptr : &found->second;
}

void register_arena(Ort::Env& environment, const Device& device, const ArenaConfig& config) {
  std::vector<const char*> keys;
  std::vector<std::size_t> values;
  for (const auto& [key, value] : config) {
    keys.push_back(key.c_str());
    values.push_back(value);
  }
  // The C++ API has a wrapper for the former call alone, which knows fewer of them.
  OrtArenaCfg* made = nullptr;
  Ort::ThrowOnError(Ort::GetApi().CreateArenaCfgV2(keys.data(), values.data(), keys.size(), &made));
  const std::unique_ptr<OrtArenaCfg, decltype(OrtApi::ReleaseArenaCfg)> arena(made, Ort::GetApi().ReleaseArenaCfg);
  if (!device.is_cuda()) {
    environment.CreateAndRegisterAllocator(Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault),
                                           arena.get());
    return;
  }
  const Ort::MemoryInfo memory("Cuda", OrtArenaAllocator, device.index, OrtMemTypeDefault);
  const std::string id = std::to_string(device.index);
  environment.CreateAndRegisterAllocatorV2("CUDAExecutionProvider", memory, {{"device_id", id}}, arena.get());
}

Ort::Env make_environment(const EnvironmentSettings& settings, OrtLoggingFunction log,
                          std::shared_ptr<ThreadGroup>& threads) {
  constexpr const char* name = "ortmulti";
  const auto severity = static_cast<OrtLoggingLevel>(default_log_severity());
  Ort::Env environment = settings.thread_pools
                             ? Ort::Env(to_onnxruntime(*settings.thread_pools, threads), log, nullptr, severity, name)
                             : Ort::Env(severity, name, log, nullptr);
  if (threads) {
    threads->dismiss_spare();
  }
  if (const ArenaConfig* config = arena_of(settings, Device::cpu()); config != nullptr) {
    register_arena(environment, Device::cpu(), *config);
  }
  if (settings.telemetry) {
    apply_telemetry(environment, *settings.telemetry);
  }
  return environment;
}

void apply_telemetry(Ort::Env& environment, bool enabled) {
  enabled ? environment.EnableTelemetryEvents() : environment.DisableTelemetryEvents();
}

int default_log_severity() noexcept { return log_severity_of_all.load(); }

void set_default_log_severity(int severity) noexcept { log_severity_of_all.store(severity); }

}  // namespace ortmulti
