#include "core/environment_settings.hpp"

#include <atomic>

#include "core/cores.hpp"

namespace ortmulti {
namespace {

std::atomic<int> log_severity_of_all{ORT_LOGGING_LEVEL_WARNING};

Ort::ThreadingOptions to_onnxruntime(const GlobalThreadPools& pools) {
  Ort::ThreadingOptions options;
  options.SetGlobalIntraOpNumThreads(pools.intra_op_num_threads == 0 ? threads_per_session(1)
                                                                     : pools.intra_op_num_threads);
  options.SetGlobalInterOpNumThreads(pools.inter_op_num_threads == 0 ? threads_per_session(1)
                                                                     : pools.inter_op_num_threads);
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

Ort::Env make_environment(const EnvironmentSettings& settings, OrtLoggingFunction log) {
  constexpr const char* name = "ortmulti";
  const auto severity = static_cast<OrtLoggingLevel>(default_log_severity());
  Ort::Env environment = settings.thread_pools
                             ? Ort::Env(to_onnxruntime(*settings.thread_pools), log, nullptr, severity, name)
                             : Ort::Env(severity, name, log, nullptr);
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
