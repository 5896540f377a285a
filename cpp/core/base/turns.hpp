#pragma once

#include <condition_variable>
#include <mutex>

#include "core/base/non_copyable.hpp"

namespace ortmulti {

/// So many threads at a time; the others wait.
class Turns : NonCopyable {
 public:
  explicit Turns(int count) : free_(count) {}

  void begin() {
    std::unique_lock lock(mutex_);
    freed_.wait(lock, [this] { return free_ > 0; });
    --free_;
  }
  void end() {
    {
      const std::lock_guard lock(mutex_);
      ++free_;
    }
    freed_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable freed_;
  int free_;
};

/// A turn for its lifetime; with null there is nothing to wait for.
class Turn : NonCopyable {
 public:
  explicit Turn(Turns* turns) : turns_(turns) {
    if (turns_ != nullptr) {
      turns_->begin();
    }
  }
  ~Turn() {
    if (turns_ != nullptr) {
      turns_->end();
    }
  }

 private:
  Turns* const turns_;
};

}  // namespace ortmulti
