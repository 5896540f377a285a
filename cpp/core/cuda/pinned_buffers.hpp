#pragma once

#include <cstdint>
#include <string>

#include "core/cuda/startup.hpp"

namespace ortmulti {

/// Buffers of one thread from which a GPU copies by itself: anonymous memory, in huge pages where there are any, which
/// cost little to pin.
class PinnedBuffers {
 public:
  /// `count` buffers of at least `each` bytes, touched by this thread so that the pages are near it. Throws Error with
  /// ErrorKind::out_of_memory.
  PinnedBuffers(std::uint64_t each, int count);
  ~PinnedBuffers();  ///< With a context current where they were pinned, and no copy from them under way.
  PinnedBuffers(const PinnedBuffers&) = delete;
  PinnedBuffers& operator=(const PinnedBuffers&) = delete;

  /// Pins them for every device; `device` is that whose context is current, for messages.
  void pin(CudaStartup& startup, const std::string& device);
  unsigned char* operator[](int index) const { return begin_ + each_ * static_cast<std::uint64_t>(index); }

 private:
  std::uint64_t each_;
  void* mapping_ = nullptr;
  std::uint64_t mapping_bytes_ = 0;
  unsigned char* begin_ = nullptr;
  std::uint64_t bytes_ = 0;
  const CudaDriver* driver_ = nullptr;  // once pinned
};

}  // namespace ortmulti
