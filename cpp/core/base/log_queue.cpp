#include "core/base/log_queue.hpp"

#include <utility>

namespace ortmulti {

void LogQueue::push(LogRecord record) {
  const std::lock_guard lock(mutex_);
  if (records_.size() >= capacity_) {
    records_.pop_front();
    ++dropped_;
  }
  records_.push_back(std::move(record));
  filled_.notify_one();
}

void LogQueue::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  filled_.wait_for(lock, timeout, [this] { return closed_ || !records_.empty(); });
}

LogQueue::Taken LogQueue::take() {
  const std::lock_guard lock(mutex_);
  return {std::exchange(records_, {}), std::exchange(dropped_, 0), closed_};
}

void LogQueue::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  filled_.notify_all();
}

}  // namespace ortmulti
