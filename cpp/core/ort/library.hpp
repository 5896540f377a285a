#pragma once

#include <onnxruntime_cxx_api.h>

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/device.hpp"
#include "core/base/log_queue.hpp"
#include "core/base/non_copyable.hpp"
#include "core/ort/thread_group.hpp"

namespace ortmulti {

/// The thread pools that sessions without threads of their own use together.
struct GlobalThreadPools {
  int intra_op_num_threads = 0;  ///< 0: by the cores that the process may use, see cpu_affinity.hpp.
  int inter_op_num_threads = 0;
  std::optional<bool> allow_spinning;  ///< Nothing: ONNX Runtime's default, which is to spin.
  std::string intra_op_affinity;       ///< In ONNX Runtime's form; empty: none.
  bool denormal_as_zero = false;
  std::optional<ThreadSettings> threads;  ///< How their threads are made; nothing: by ONNX Runtime.
};

/// An arena's configuration, by ONNX Runtime's names for its parts, such as "max_mem"; what is left out has its
/// defaults.
using ArenaConfig = std::map<std::string, std::size_t>;

/// The log severity of the environment, and of sessions that set none: ONNX Runtime's 0 (verbose) to 4 (fatal), 2
/// unless it was set.
int default_log_severity() noexcept;

/// Where ONNX Runtime's log goes. A forked child has a new, empty one.
LogQueue& onnxruntime_log();

/// While one exists, what ONNX Runtime logs in this thread is dropped, since the caller reports what fails.
class Unlogged : NonCopyable {
 public:
  Unlogged();
  ~Unlogged();
};

/// The one ONNX Runtime of this process: the opened libonnxruntime, its API and its environment. It is never closed:
/// sessions, values and ONNX Runtime's own threads may need it up to the end of the process.
class OnnxRuntime : NonCopyable {
 public:
  /// The newest API that may be called without asking for the release first: 1.21's.
  static constexpr int api_version = 21;

  /// Opens the library at `path`. Once it is open, the same path returns it and another one is an error.
  /// `cuda_provider`: the library with the CUDA provider, if there is one; see cuda_plugin().
  static OnnxRuntime& open(const std::string& path, const std::string& cuda_provider = {});

  /// Opens it and makes its environment in a thread of its own, unless a library is open. Whoever needs it waits for
  /// that, and reports what fails.
  static void begin_opening(const std::string& path, const std::string& cuda_provider);
  /// Waits for that thread. Called before the process ends.
  static void join();

  /// The opened library; an error before open().
  static OnnxRuntime& get();
  static bool is_open() noexcept;

  const std::string& path() const noexcept { return path_; }
  const std::string& version() const noexcept { return version_; }  ///< "1.31.1"
  std::vector<std::string> available_providers() const;
  /// The CUDA provider's library where it is a plug-in; empty where the provider is built in, or there is none.
  const std::string& cuda_plugin() const noexcept { return cuda_plugin_; }
  std::string build_info() const;  ///< What this build says of itself.

  /// The environment, made with the settings so far at the first call. Throws Error.
  const Ort::Env& env();
  bool has_env() const noexcept { return env_.load() != nullptr; }

  // Settings of the environment; before the library is open, too.

  /// Throws Error with ErrorKind::fail once the environment is there.
  static void set_global_thread_pools(const GlobalThreadPools& pools);
  /// The arenas that the sessions of a device share which use the environment's allocators, by the device ("cpu",
  /// "cuda:0"); "": of every other device. Throws as set_global_thread_pools().
  static void set_arenas(std::map<std::string, ArenaConfig> arenas);
  /// Whether the sessions of a device share an arena, or will.
  static bool has_arena(const Device& device);
  static void set_log_severity(int severity);
  static void set_telemetry(bool enabled);
  /// Makes the environment, and throws Error where sessions in this process cannot use global thread pools.
  void check_global_thread_pools();
  /// Makes the arena that the device's sessions share, unless it is there or none was asked for. The device's context
  /// is the calling thread's, and its libraries are open. Throws Ort::Exception, and Error where no device has one.
  void share_arena(const Device& device);

 private:
  OnnxRuntime(const std::string& path, const std::string& cuda_provider);
  ~OnnxRuntime() = default;
  static Ort::Env* made_env() noexcept;

  std::string path_;
  std::string version_;
  std::string cuda_plugin_;
  std::atomic<Ort::Env*> env_{nullptr};
  bool has_thread_pools_ = false;  // these two are set before `env_`
  unsigned generation_ = 0;
  std::shared_ptr<ThreadGroup> pool_threads_;  // of the global pools
  std::set<std::string> shared_arenas_;        // of GPUs; under the environment's lock
};

}  // namespace ortmulti
