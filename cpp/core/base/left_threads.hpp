#pragma once

#include <cstddef>
#include <functional>
#include <future>
#include <list>
#include <mutex>
#include <thread>

namespace ortmulti {

/// Threads that nobody waits for before the process ends. The stacks of those that have exited go when the next comes.
class LeftThreads {
 public:
  struct Thread {
    std::future<void> exited;  ///< After the destructors of its thread_local objects, which may wait for a GPU.
    std::jthread thread;       ///< Ends first.
  };

  /// Throws std::system_error. What `work` holds is freed in the thread.
  static Thread start(std::function<void()> work);

  /// Does not wait.
  void leave(Thread thread);
  /// Waits for all that were left.
  void join();
  std::size_t size();

 private:
  std::mutex mutex_;
  std::list<Thread> threads_;
};

}  // namespace ortmulti
