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
  const std::lock_guard calling(calling_);
  std::unique_lock lock(mutex_);
  work_ = &work;
  asked_.notify_one();
  done_.wait(lock, [this] { return work_ == nullptr; });
  if (const std::exception_ptr error = std::exchange(error_, nullptr)) {
    std::rethrow_exception(error);
  }
}

void SerialThread::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    asked_.wait(lock, [this] { return work_ != nullptr || stops_; });
    if (work_ == nullptr) {
      return;
    }
    lock.unlock();
    std::exception_ptr error;
    try {
      (*work_)();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    error_ = std::move(error);
    work_ = nullptr;
    done_.notify_one();
  }
}

}  // namespace ortmulti
