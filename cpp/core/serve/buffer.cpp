#include "core/serve/buffer.hpp"

#include <malloc.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

namespace ortmulti::serve {
namespace {

constexpr std::size_t smallest = 4096;

std::size_t size_of(std::size_t size_class) { return smallest << size_class; }

void free_memory(std::byte* memory) noexcept { ::operator delete[](memory, std::align_val_t{BufferPool::alignment}); }

}  // namespace

std::shared_ptr<std::byte[]> BufferPool::take(std::size_t bytes, std::size_t& capacity, bool& used) {
  const std::size_t pages = bytes / smallest + (bytes % smallest != 0 ? 1 : 0);
  const auto size_class = static_cast<std::size_t>(std::countr_zero(std::bit_ceil(std::max<std::size_t>(pages, 1))));
  if (size_class >= size_classes) {
    throw std::bad_alloc();
  }
  std::byte* memory = nullptr;
  {
    const MutexLock lock(mutex_);
    std::vector<std::byte*>& unused = unused_[size_class];
    if (!unused.empty()) {
      memory = unused.back();
      unused.pop_back();
      kept_ -= size_of(size_class);
    }
  }
  used = memory != nullptr;
  if (!used) {
    memory = static_cast<std::byte*>(::operator new[](size_of(size_class), std::align_val_t{alignment}));
  }
  capacity = size_of(size_class);
  return {memory, [this, size_class](std::byte* unused) { give_back(unused, size_class); }};
}

void BufferPool::give_back(std::byte* memory, std::size_t size_class) noexcept {
  {
    const MutexLock lock(mutex_);
    if (size_of(size_class) <= most_kept_ && kept_ <= most_kept_ - size_of(size_class)) {
      try {
        unused_[size_class].push_back(memory);
        kept_ += size_of(size_class);
        return;
      } catch (const std::bad_alloc&) {  // it is freed
      }
    }
  }
  free_memory(memory);
}

void BufferPool::trim() noexcept {
  {
    const MutexLock lock(mutex_);
    for (std::vector<std::byte*>& unused : unused_) {
      std::ranges::for_each(unused, free_memory);
      unused.clear();
    }
    kept_ = 0;
  }
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

void keep_freed_memory() noexcept {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most that it takes
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
#endif
}

std::size_t BufferPool::kept() const noexcept {
  const MutexLock lock(mutex_);
  return kept_;
}

std::span<std::byte> Buffer::room(std::size_t bytes) {
  if (bytes > capacity_ - size_) {
    std::size_t capacity = 0;
    std::shared_ptr<std::byte[]> memory = pool_->take(begin_ + size_ + bytes, capacity, used_);
    if (size_ > 0) {
      std::memcpy(memory.get() + begin_, data(), size_);
    }
    memory_ = std::move(memory);
    capacity_ = capacity - begin_;
  }
  return {data() + size_, bytes};
}

void Buffer::append(std::string_view bytes) {
  if (!bytes.empty()) {
    std::memcpy(room(bytes.size()).data(), bytes.data(), bytes.size());
    wrote(bytes.size());
  }
}

}  // namespace ortmulti::serve
