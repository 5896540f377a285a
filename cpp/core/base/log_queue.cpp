#include "core/base/log_queue.hpp"

#include <iterator>
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

std::vector<LogRecord> LogQueue::take(std::chrono::milliseconds timeout, std::uint64_t& dropped) {
  std::unique_lock lock(mutex_);
  filled_.wait_for(lock, timeout, [this] { return closed_ || !records_.empty(); });
  std::vector<LogRecord> taken(std::make_move_iterator(records_.begin()), std::make_move_iterator(records_.end()));
  records_.clear();
  dropped = std::exchange(dropped_, 0);
  return taken;
}

void LogQueue::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  filled_.notify_all();
}

bool LogQueue::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

}  // namespace ortmulti
