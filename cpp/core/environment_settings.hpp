#pragma once

#include <onnxruntime_cxx_api.h>

#include <optional>
#include <string>

namespace ortmulti {

/// The thread pools that sessions without threads of their own use together.
struct GlobalThreadPools {
  int intra_op_num_threads = 0;  ///< 0: by the cores that the process may use, see cores.hpp.
  int inter_op_num_threads = 0;
  std::optional<bool> allow_spinning;  ///< Nothing: ONNX Runtime's default, which is to spin.
  std::string intra_op_affinity;       ///< In ONNX Runtime's form; empty: none.
  bool denormal_as_zero = false;
};

/// What ONNX Runtime's one environment is made with.
struct EnvironmentSettings {
  std::optional<GlobalThreadPools> thread_pools;
  std::optional<bool> telemetry;  ///< Nothing: ONNX Runtime's default.
};

/// Makes the environment. Throws Ort::Exception.
Ort::Env make_environment(const EnvironmentSettings& settings, OrtLoggingFunction log);

/// Has telemetry events collected, or no longer; on Linux ONNX Runtime collects none.
void apply_telemetry(Ort::Env& environment, bool enabled);

/// The log severity of the environment, and of sessions that set none: ONNX Runtime's 0 (verbose) to 4 (fatal), 2
/// unless it was set.
int default_log_severity() noexcept;
void set_default_log_severity(int severity) noexcept;

}  // namespace ortmulti
