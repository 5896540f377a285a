#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

namespace ortmulti {

/// Threads that nobody waits for before the process ends. The stacks of those that have ended go when the next comes.
class LeftThreads {
 public:
  struct Thread {
    std::thread thread;
    std::shared_ptr<const std::atomic<bool>> ended;
  };

  /// Throws std::system_error. What `work` holds is freed in the thread.
  static Thread start(std::function<void()> work);

  void leave(Thread thread);
  /// Waits for all that were left.
  void join();
  std::size_t size();

 private:
  std::mutex mutex_;
  std::list<Thread> threads_;
};

}  // namespace ortmulti
