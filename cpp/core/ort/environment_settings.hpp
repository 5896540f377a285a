#pragma once

#include <onnxruntime_cxx_api.h>

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "core/base/device.hpp"
#include "core/ort/thread_group.hpp"

namespace ortmulti {

/// The thread pools that sessions without threads of their own use together.
struct GlobalThreadPools {
  int intra_op_num_threads = 0;  ///< 0: by the cores that the process may use, see cores.hpp.
  int inter_op_num_threads = 0;
  std::optional<bool> allow_spinning;  ///< Nothing: ONNX Runtime's default, which is to spin.
  std::string intra_op_affinity;       ///< In ONNX Runtime's form; empty: none.
  bool denormal_as_zero = false;
  std::optional<ThreadSettings> threads;  ///< How their threads are made; nothing: by ONNX Runtime.
};

/// An arena's configuration, by ONNX Runtime's names for its parts, such as "max_mem"; what is left out has its
/// defaults.
using ArenaConfig = std::map<std::string, std::size_t>;

/// What ONNX Runtime's one environment is made with.
struct EnvironmentSettings {
  std::optional<GlobalThreadPools> thread_pools;
  std::optional<bool> telemetry;  ///< Nothing: ONNX Runtime's default.
  /// Of the arenas that sessions of a device share, by the device ("cpu", "cuda:0"); "": of every other device.
  std::map<std::string, ArenaConfig> arenas;
};

/// The configuration of the arena that a device's sessions share; null: there is none.
const ArenaConfig* arena_of(const EnvironmentSettings& settings, const Device& device);

/// Makes the environment with the CPU's arena, and `threads` for its global thread pools where the core makes these.
/// Throws Ort::Exception and Error.
Ort::Env make_environment(const EnvironmentSettings& settings, OrtLoggingFunction log,
                          std::shared_ptr<ThreadGroup>& threads);

/// Gives the environment an allocator for the device. Throws Ort::Exception.
void register_arena(Ort::Env& environment, const Device& device, const ArenaConfig& config);

/// Has telemetry events collected, or no longer; on Linux ONNX Runtime collects none.
void apply_telemetry(Ort::Env& environment, bool enabled);

/// The log severity of the environment, and of sessions that set none: ONNX Runtime's 0 (verbose) to 4 (fatal), 2
/// unless it was set.
int default_log_severity() noexcept;
void set_default_log_severity(int severity) noexcept;

}  // namespace ortmulti
