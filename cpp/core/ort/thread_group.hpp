#pragma once

#include <onnxruntime_cxx_api.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/base/non_copyable.hpp"

namespace ortmulti {

/// How the threads are made that ONNX Runtime's thread pools consist of.
struct ThreadSettings {
  std::string name_prefix = "ort";  ///< Threads are called "ort-cuda:0-1"; the kernel keeps 15 bytes of that.
  std::optional<int> numa_node;     ///< The memory node on whose CPUs they stay.
  bool near_device = false;         ///< They stay on the CPUs near the session's GPU.
  std::vector<int> cpus;            ///< The CPUs on which they stay, by the kernel's numbers; at most one of the three.
};

/// The CPUs on which threads with these settings stay; empty: on all that their creator may use. `pci_bus_id`: the
/// session's GPU, empty where it has none. Throws Error with ErrorKind::invalid_argument for CPUs or a node that this
/// process may not use or the machine has not.
std::vector<int> cpus_for(const ThreadSettings& settings, const std::string& pci_bus_id = {});

/// A thread's name: of the prefix, as much as the 15 bytes leave room for beside the owner and the number.
std::string thread_name(const std::string& prefix, const std::string& owner, int number);

struct ThreadCounts {
  std::string name_prefix;
  std::string owner;      ///< The session's device, or "global".
  std::vector<int> cpus;  ///< On which they stay; empty: not bound.
  int created = 0;        ///< Threads that ONNX Runtime was given.
  int joined = 0;         ///< How many of these have ended.
};

/// The threads of one session's pools, or of the global ones, made and joined by the callbacks that ONNX Runtime is
/// given. They are started before it asks for them: where one thread of a pool cannot be made, it waits forever for
/// those that it has (1.21 to 1.31).
class ThreadGroup : NonCopyable {
 public:
  /// Starts `count` threads. Throws Error where the system does not allow as many; then none is left.
  static std::shared_ptr<ThreadGroup> start(const ThreadSettings& settings, std::string owner, std::vector<int> cpus,
                                            int count);
  ~ThreadGroup();

  /// This object must live until ONNX Runtime's session, or environment, is gone.
  void apply_to(Ort::SessionOptions& options);
  void apply_to(Ort::ThreadingOptions& options);

  /// Ends the threads that were not asked for.
  void dismiss_spare() noexcept;

  /// In a forked child, which has none of them, all count as joined.
  ThreadCounts counts() const;

 private:
  struct Worker;

  ThreadGroup(const ThreadSettings& settings, std::string owner, std::vector<int> cpus);
  std::unique_ptr<Worker> start_worker();
  OrtCustomThreadHandle give(OrtThreadWorkerFn work, void* parameter);
  static OrtCustomThreadHandle create(void* group, OrtThreadWorkerFn work, void* parameter);
  static void join(OrtCustomThreadHandle handle);

  std::string name_prefix_;
  std::string owner_;
  std::vector<int> cpus_;
  unsigned generation_;
  std::atomic<int> created_{0};
  std::atomic<int> joined_{0};
  std::mutex mutex_;
  int started_ = 0;
  std::vector<std::unique_ptr<Worker>> spare_;  // in the reverse order of their numbers

  friend struct LiveWorkers;
};

/// The counts of every group of this process from which ONNX Runtime still has threads, in the order of their making.
std::vector<ThreadCounts> thread_counts();

}  // namespace ortmulti
