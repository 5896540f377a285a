// The memory that a session keeps for its runs.
#include <algorithm>
#include <cstdlib>
#include <future>
#include <map>
#include <string>
#include <system_error>
#include <utility>

#include "core/cuda/device_sync_guard.hpp"
#include "core/cuda/memory.hpp"
#include "core/cuda/startup.hpp"
#include "core/ort/api_compat.hpp"
#include "core/ort/device_use.hpp"
#include "core/ort/library.hpp"
#include "core/ort/session_steps.hpp"

namespace ortmulti {
namespace {

// The allocator whose arena the session's runs use. Throws Ort::Exception where its provider has no such one.
Ort::Allocator arena_allocator(const Ort::Session& session, const Device& device) {
  return {session, device.is_cuda() ? Ort::MemoryInfo("Cuda", OrtArenaAllocator, device.index, OrtMemTypeDefault)
                                    : Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault)};
}

}  // namespace

bool has_arena(const Device& device, const SessionOptions& options) {
  return device.is_cuda() || (device == Device::cpu() && options.enable_cpu_mem_arena);
}

void begin_arena(const Ort::Session& session, const Device& device) {
  try {
    static_cast<void>(arena_allocator(session, device).GetAllocation(1));
  } catch (const Ort::Exception&) {  // NOLINT(bugprone-empty-catch): there is no arena, or no memory for it
  }
}

void run_nothing(Ort::Session& session, const std::vector<ValueInfo>& inputs, const std::vector<ValueInfo>& outputs,
                 Ort::RunOptions options) {
  try {
    const RunInputs fed = zeros(inputs);
    const std::vector<const char*> wanted = name_pointers(outputs);
    options.SetTerminate();
    options.SetRunLogSeverityLevel(ORT_LOGGING_LEVEL_FATAL);
    session.Run(options, fed.names().data(), fed.values(), fed.size(), wanted.data(), wanted.size());
  } catch (const Ort::Exception&) {  // NOLINT(bugprone-empty-catch): that it was ended
  } catch (const Error&) {           // NOLINT(bugprone-empty-catch): there are no such inputs
  }
}

std::optional<Session::Arena> Session::arena() const {
  if (closed() || (inherited() && !survives_fork())) {
    return std::nullopt;
  }
  const std::shared_lock open(mutex_, std::try_to_lock);  // who closes it may take long
  if (!open || !live_ || !has_arena(device(), options())) {
    return std::nullopt;
  }
  std::map<std::string, std::string> stats;
  try {
    const Ort::Allocator allocator = arena_allocator(live_->session, device());
    stats = ort_api_compat::allocator_stats(*static_cast<const OrtAllocator*>(allocator));
  } catch (const Ort::Exception&) {  // NOLINT(bugprone-empty-catch): the provider has no such allocator
  }
  const auto number = [&stats](const char* name) {
    const auto found = stats.find(name);
    return found == stats.end() ? 0 : std::strtoull(found->second.c_str(), nullptr, 10);
  };
  static const char all_sessions = 0;  // which have one arena
  const void* const owner = is_on(options(), "session.use_env_allocators") && OnnxRuntime::has_arena(device())
                                ? &all_sessions
                                : static_cast<const void*>(live_.get());
  const Arena arena{number("TotalAllocated"), number("InUse"), number("MaxInUse"), owner};
  return arena.held == 0 ? std::nullopt : std::optional(arena);
}

void Session::shrink_arena(Shrink when) {
  // A run of this thread that lacks memory may have it, too: POSIX allows that, and glibc's readers pass waiting
  // writers.
  const auto open = lock_for_use();
  using Shrinks = LiveSession::Shrinks;
  if (device().is_cuda() && when == Shrink::in_next_run) {
    live_->shrinks.store(Shrinks::in_next_run);
    return;
  }
  live_->shrinks.store(live_->runs.load() == 0 ? Shrinks::no : Shrinks::once_idle);
  const auto work = [this] { shrink(); };
  if (!device().is_cuda()) {
    work();
    return;
  }
  std::future<void> done;
  try {
    done = std::async(std::launch::async, work);
  } catch (const std::system_error&) {
    work();
    return;
  }
  done.get();
}

void Session::shrink() const {
  const Device& on = device();
  if (!description_->may_run_unasked) {
    return;
  }
  std::string arenas = options().enable_cpu_mem_arena ? "cpu:0" : "";
  if (on.is_cuda()) {
    arenas += (arenas.empty() ? "gpu:" : ";gpu:") + std::to_string(on.index);
  }
  if (arenas.empty()) {
    return;
  }
  Ort::RunOptions shrinking;
  shrinking.AddConfigEntry("memory.enable_memory_arena_shrinkage", arenas.c_str());
  std::optional<MindsNoCaptures> mode;
  if (on.is_cuda()) {
    mode.emplace(CudaStartup::instance().driver());
  }
  const DeviceSyncGuard guard(on, DeviceSyncGuard::Work::waits_for_device);
  std::optional<DeviceUse> use;
  if (on.is_cuda()) {
    use.emplace(on);
  }
  run_nothing(live_->session, inputs(), outputs(), std::move(shrinking));
}

}  // namespace ortmulti
