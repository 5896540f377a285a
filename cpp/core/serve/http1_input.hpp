#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

namespace ortmulti::serve {

/// Bytes that were read and not yet parsed. It has memory only while there are some.
class Http1Input {
 public:
  static constexpr std::size_t first_capacity = std::size_t{16} << 10;

  std::string_view view() const noexcept {
    return {reinterpret_cast<const char*>(memory_.get()) + begin_, end_ - begin_};
  }
  std::size_t size() const noexcept { return end_ - begin_; }
  bool empty() const noexcept { return begin_ == end_; }
  std::size_t capacity() const noexcept { return capacity_; }

  std::span<std::byte> room() {
    if (size() == capacity_) {
      const std::size_t capacity = std::max(first_capacity, 2 * capacity_);
      auto memory = std::make_unique_for_overwrite<std::byte[]>(capacity);
      std::ranges::copy(view(), reinterpret_cast<char*>(memory.get()));
      memory_ = std::move(memory);
      capacity_ = capacity;
    } else if (begin_ > 0) {
      std::memmove(memory_.get(), memory_.get() + begin_, size());
    }
    end_ -= std::exchange(begin_, 0);
    return {memory_.get() + end_, capacity_ - end_};
  }
  void wrote(std::size_t bytes) noexcept { end_ += bytes; }
  void drop(std::size_t bytes) noexcept {
    begin_ += bytes;
    if (empty()) {
      memory_.reset();
      begin_ = end_ = capacity_ = 0;
    }
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t capacity_ = 0;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace ortmulti::serve
