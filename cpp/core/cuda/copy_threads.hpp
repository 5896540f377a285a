#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "core/base/fork.hpp"

namespace ortmulti {

/// A few threads of the process that help with what one thread would take too long for, such as copying many megabytes
/// between two places in memory. Who asks never waits for a helper to come.
class CopyHelpers {
 public:
  static CopyHelpers& instance();

  /// How many there are, at most; 0 on a machine with one core.
  static int count();

  /// Calls `part(0)` in this thread and `part(1)`, `part(2)`, ... up to `helpers` in those that are free meanwhile, all
  /// at the same time; returns when all that began have ended. A part takes what there is to do from the others, so
  /// that the first alone would do it all. Throws what one of them throws.
  void share(int helpers, const std::function<void(int)>& part);

 private:
  struct Job;
  template <typename T>
  friend T& one_of_process();

  CopyHelpers() = default;
  void start();
  void serve();

  std::mutex mutex_;
  std::condition_variable offered_;
  std::deque<std::shared_ptr<Job>> jobs_;  // one for each helper that a job may have
  int serving_ = 0;                        // threads
};

}  // namespace ortmulti
