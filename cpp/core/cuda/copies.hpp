#pragma once

#include <cstddef>
#include <deque>
#include <functional>

#include "core/cuda/graph.hpp"
#include "core/cuda/memory.hpp"
#include "core/cuda/startup.hpp"

namespace ortmulti {

/// The maximum number of threads that help to copy; 0 on a machine with one core.
int max_copy_helpers();

/// Calls `part(0)` in this thread, and `part(1)`, `part(2)`, ... up to `helpers` in free ones of a few threads of the
/// process, at the same time. Never waits for a busy thread. Returns when all parts that began have ended. Parts share
/// the work: part 0 alone would do all of it. Throws the error of one of them.
void share_copy(int helpers, const std::function<void(int)>& part);

/// Bytes from which several threads copy: for fewer, others would come too late.
inline constexpr std::size_t copy_shared_from = 4U << 20U;

/// Copies between any memory and one GPU's on a stream of their own, so that they go on beside what runs there: the
/// host's through pinned buffers of a fixed size, chunk by chunk, while the chunk before is on its way, by several
/// threads where there is much. Not for several threads at once. All throw Error, and need the device's context to be
/// current, as does the destructor.
class StagedCopies {
 public:
  StagedCopies(CudaStartup& startup, int device);

  /// `source` may be changed on return, but what it held is on the GPU after wait() alone.
  void from_host(void* target, const void* source, std::size_t bytes);
  /// From pinned memory, by the GPU alone: it must not change before wait().
  void from_pinned(void* target, const void* source, std::size_t bytes);
  /// Done on return.
  void to_host(void* target, const void* source, std::size_t bytes);
  /// From this GPU's memory or another one's; done after wait().
  void from_device(void* target, int source_device, const void* source, std::size_t bytes);
  void wait();
  /// After a copy failed: returns when the others are done, or failed, too.
  void settle() noexcept;
  CUstream stream() const noexcept { return stream_.get(); }

 private:
  static constexpr std::size_t chunk = 1U << 20U;
  static constexpr int parts = 4;  // threads that copy at the same time, with two buffers each

  struct Transfer;

  void share(std::size_t bytes, const std::function<void(int)>& part);
  void send(Transfer& transfer, int part);
  void fetch(Transfer& transfer, int part);
  void check(CUresult result) const;

  CudaStartup& startup_;
  int device_;
  const CudaDriver& driver_;
  PinnedBuffers buffers_;
  std::deque<CudaEvent> copied_;  // from or to each buffer, the last time
  CudaEvent done_;
  CudaStream stream_;  // ends before its events and buffers do
};

}  // namespace ortmulti
