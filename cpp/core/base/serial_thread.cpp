#include "core/base/serial_thread.hpp"

#include <string>
#include <system_error>
#include <utility>

#include "core/base/error.hpp"

namespace ortmulti {

SerialThread::SerialThread() {
  try {
    thread_ = std::thread(&SerialThread::serve, this);
  } catch (const std::system_error& error) {
    throw Error(ErrorKind::fail, std::string("cannot start a thread: ") + error.what());
  }
}

SerialThread::~SerialThread() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
    asked_.notify_one();
  }
  thread_.join();
}

void SerialThread::call(const std::function<void()>& work) {
  std::packaged_task<void()> task([&work] { work(); });
  std::future<void> done = task.get_future();
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    asked_.notify_one();
  }
  done.get();
}

void SerialThread::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    asked_.wait(lock, [this] { return !tasks_.empty() || stops_; });
    if (tasks_.empty()) {
      return;
    }
    std::packaged_task<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = {};  // its error may be freed here
    lock.lock();
  }
}

}  // namespace ortmulti
