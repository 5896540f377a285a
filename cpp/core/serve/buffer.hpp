#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/mutex.hpp"
#include "core/base/non_copyable.hpp"

namespace ortmulti::serve {

/// Memory for bodies, that is kept for the next ones: glibc would give it back and fault it in again for each large
/// request. Any thread may use it. It outlives its buffers.
class BufferPool : NonCopyable {
 public:
  static constexpr std::size_t alignment = 64;

  /// Keeps so many unused bytes at most.
  explicit BufferPool(std::size_t most_kept) : most_kept_(most_kept) {}
  ~BufferPool() { trim(); }

  /// Memory of this size at least, aligned, with no particular content. Throws std::bad_alloc.
  /// `used`: whether it was used before, and so has the machine's memory already.
  std::shared_ptr<std::byte[]> take(std::size_t bytes, std::size_t& capacity, bool& used);
  /// Frees what is kept, and has the allocator return to the system what is free.
  void trim() noexcept;
  std::size_t kept() const noexcept;

 private:
  void give_back(std::byte* memory, std::size_t size_class) noexcept;

  static constexpr std::size_t size_classes = 51;

  const std::size_t most_kept_;
  mutable Mutex mutex_;
  /// By sizes: powers of two, from 4 KiB.
  std::array<std::vector<std::byte*>, size_classes> unused_ ORTMULTI_GUARDED_BY(mutex_);
  std::size_t kept_ ORTMULTI_GUARDED_BY(mutex_) = 0;
};

/// Has the allocator of the process keep what is freed for the next requests, until a pool of buffers is trimmed. Else
/// it returns the memory of each large answer to the system, which has to clear it for the next one.
void keep_freed_memory() noexcept;

/// A body that grows as it arrives.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(BufferPool& pool) : pool_(&pool) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~Buffer() = default;

  /// Has the byte at this index lie at a multiple of 64. Called before anything is there.
  void align(std::size_t index) noexcept { begin_ = -index % BufferPool::alignment; }
  /// Room for so many further bytes; what is there moves where the memory is too small, to one of twice its size at
  /// least. Throws std::bad_alloc.
  std::span<std::byte> room(std::size_t bytes);
  /// So many were written there.
  void wrote(std::size_t bytes) noexcept { size_ += bytes; }
  void append(std::string_view bytes);

  std::byte* data() const noexcept { return memory_ == nullptr ? nullptr : memory_.get() + begin_; }
  std::size_t size() const noexcept { return size_; }
  /// Bytes of the machine's memory that it has by now.
  std::size_t resident() const noexcept { return used_ ? capacity_ : size_; }
  std::string_view text() const noexcept { return {reinterpret_cast<const char*>(data()), size_}; }
  /// What data() is, for whoever uses it longer.
  std::shared_ptr<std::byte[]> memory() const noexcept { return {memory_, data()}; }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(pool_, other.pool_);
    memory_.swap(other.memory_);
    std::swap(capacity_, other.capacity_);
    std::swap(used_, other.used_);
    std::swap(begin_, other.begin_);
    std::swap(size_, other.size_);
  }

  BufferPool* pool_ = nullptr;
  std::shared_ptr<std::byte[]> memory_;
  std::size_t capacity_ = 0;
  bool used_ = false;
  std::size_t begin_ = 0;  ///< Of the body in the memory.
  std::size_t size_ = 0;
};

}  // namespace ortmulti::serve
