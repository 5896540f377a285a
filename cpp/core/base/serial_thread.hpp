#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

#include "core/base/non_copyable.hpp"

namespace ortmulti {

/// A thread that does one call after the other, for work that must always run in the same thread.
class SerialThread : NonCopyable {
 public:
  SerialThread();   ///< Throws Error if the thread cannot be started.
  ~SerialThread();  ///< Waits for the call under way.

  /// Runs `work` in the thread, waits for its end, and throws what it throws. Calls of several threads run one by one.
  void call(const std::function<void()>& work);

 private:
  void serve();

  std::mutex mutex_;
  std::condition_variable asked_;
  std::deque<std::packaged_task<void()>> tasks_;
  bool stops_ = false;
  std::thread thread_;  // last, since it uses the others
};

}  // namespace ortmulti
