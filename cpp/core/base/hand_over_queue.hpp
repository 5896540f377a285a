#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>

namespace ortmulti {

/// What any threads give to the one that takes it. Writers never wait for the reader: where that has fallen behind by
/// `capacity` items, the oldest are dropped and counted.
template <typename Item>
class HandOverQueue {
 public:
  explicit HandOverQueue(std::size_t capacity = std::numeric_limits<std::size_t>::max()) : capacity_(capacity) {}

  void push(Item item) {
    {
      const std::lock_guard lock(mutex_);
      if (items_.size() >= capacity_) {
        items_.pop_front();
        ++dropped_;
      }
      items_.push_back(std::move(item));
    }
    filled_.notify_one();
  }

  /// Waits for an item, at most `timeout` if there is one, and not when closed.
  void wait(std::optional<std::chrono::milliseconds> timeout = std::nullopt) {
    const auto ready = [this] { return closed_ || !items_.empty(); };
    std::unique_lock lock(mutex_);
    if (timeout) {
      filled_.wait_for(lock, *timeout, ready);
    } else {
      filled_.wait(lock, ready);
    }
  }

  struct Taken {
    std::deque<Item> items;     ///< All that there were, in the order of the pushes.
    std::uint64_t dropped = 0;  ///< Since the last call.
    bool closed = false;
  };
  Taken take() {
    const std::lock_guard lock(mutex_);
    return {std::exchange(items_, {}), std::exchange(dropped_, 0), closed_};
  }

  /// Wakes a waiting reader, until open(). What is pushed later can be taken all the same.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    filled_.notify_all();
  }
  void open() {
    const std::lock_guard lock(mutex_);
    closed_ = false;
  }

 private:
  const std::size_t capacity_;
  std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<Item> items_;
  std::uint64_t dropped_ = 0;
  bool closed_ = false;
};

}  // namespace ortmulti
