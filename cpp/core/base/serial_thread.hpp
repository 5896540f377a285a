#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace ortmulti {

/// A thread for what must always be done by the same one.
class OwnThread {
 public:
  OwnThread();   ///< Throws Error where the system has no further thread.
  ~OwnThread();  ///< Waits for what it does.
  OwnThread(const OwnThread&) = delete;
  OwnThread& operator=(const OwnThread&) = delete;

  /// Has the thread do it, and waits until it is done; throws what that throws. From several threads: one by one.
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
