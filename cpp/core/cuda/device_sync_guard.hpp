#pragma once

#include "core/base/device.hpp"
#include "core/base/non_copyable.hpp"

namespace ortmulti {

/// Separates, on each GPU, what may capture a stream from work that waits for the whole device. A pool captures CUDA
/// graphs, and cuDNN the first convolution of a shape. CUDA lets a device not be waited for while one of its streams is
/// captured: both would fail, as they do with ONNX Runtime's own sessions. Of a capture of one thread
/// (CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) other threads notice nothing else: allocations, copies, launches, events and
/// streams went on beside one, on the same GPU and on another (driver 580, H200). Creating and freeing a session waits
/// for its device. Work of one kind goes on side by side, that which does both alone; who came first goes first. For
/// the CPU it does nothing.
class DeviceSyncGuard : NonCopyable {
 public:
  enum class Work { may_capture, waits_for_device, both };

  /// Waits until nothing that it cannot go beside is under way on the device. Not twice in a thread.
  DeviceSyncGuard(const Device& device, Work work);
  ~DeviceSyncGuard();

 private:
  struct Queue;

  static Queue& queue_of(int device);

  Queue* queue_ = nullptr;
};

}  // namespace ortmulti
