#pragma once

#include <array>
#include <cstddef>

#include "core/cuda_startup.hpp"
#include "core/pinned_buffers.hpp"

namespace ortmulti {

/// Copies between any memory and one GPU's on a stream of their own, so that they go on beside what runs there: the
/// host's through pinned buffers of a fixed size, chunk by chunk, while the chunk before is on its way. Not for several
/// threads at once. All throw Error, and need the device's context to be current, as does the destructor.
class StagedCopies {
 public:
  StagedCopies(CudaStartup& startup, int device);
  ~StagedCopies();
  StagedCopies(const StagedCopies&) = delete;
  StagedCopies& operator=(const StagedCopies&) = delete;

  /// `source` may be changed on return, but what it held is on the GPU after wait() alone.
  void from_host(void* target, const void* source, std::size_t bytes);
  /// Done on return.
  void to_host(void* target, const void* source, std::size_t bytes);
  /// From this GPU's memory or another one's; done after wait().
  void from_device(void* target, int source_device, const void* source, std::size_t bytes);
  void wait();
  CUstream stream() const noexcept { return stream_; }

 private:
  static constexpr std::size_t chunk = 2U << 20U;
  static constexpr int chunks = 4;

  unsigned char* buffer(std::size_t number) { return buffers_[static_cast<int>(number % chunks)]; }
  void check(CUresult result) const;
  void free() noexcept;

  CudaStartup& startup_;
  int device_;
  const CudaDriver& driver_;
  PinnedBuffers buffers_;
  CUstream stream_ = nullptr;
  std::array<CUevent, chunks> copied_{};  // from or to each buffer, the last time
  std::size_t next_ = 0;
};

}  // namespace ortmulti
