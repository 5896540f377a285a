#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace ortmulti {

/// A thread that does one call after the other, for work that must always run in the same thread.
class SerialThread {
 public:
  SerialThread();   ///< Throws Error if the thread cannot be started.
  ~SerialThread();  ///< Waits for the call under way.
  SerialThread(const SerialThread&) = delete;
  SerialThread& operator=(const SerialThread&) = delete;

  /// Runs `work` in the thread, waits for its end, and throws what it throws. Calls of several threads run one by one.
  void call(const std::function<void()>& work);

 private:
  void serve();

  std::mutex calling_;
  std::mutex mutex_;
  std::condition_variable asked_;
  std::condition_variable done_;
  const std::function<void()>* work_ = nullptr;
  std::exception_ptr error_;
  bool stops_ = false;
  std::thread thread_;  // last, since it uses the others
};

}  // namespace ortmulti
