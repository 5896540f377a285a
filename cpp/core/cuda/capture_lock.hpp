#pragma once

#include <optional>

#include "core/base/device.hpp"
#include "core/base/non_copyable.hpp"

namespace ortmulti {

/// The process's lock of CUDA graph captures. While a graph is captured, CUDA refuses many calls of other threads, on
/// every device, and the capture then fails too. Every use of CUDA holds the lock shared, every capture exclusively.
class CaptureLock {
 public:
  /// A capture waits for brief uses. It does not wait for lasting ones: creating and freeing sessions.
  enum class Use { brief, lasting };

  class Shared;
  class Exclusive;
};

/// A thread's use of CUDA. Within another one, or within an exclusive lock, of the same thread it does nothing.
class CaptureLock::Shared : NonCopyable {
 public:
  /// Waits until nothing is captured.
  explicit Shared(Use use = Use::brief) : Shared(true, use) {}
  /// Does nothing for the CPU.
  explicit Shared(const Device& device, Use use = Use::brief) : Shared(device.is_cuda(), use) {}
  ~Shared();

 private:
  Shared(bool of_cuda, Use use);

  bool of_cuda_;
  Use use_;
};

/// A capture: all uses of CUDA by other threads wait for its end. It must outlive the uses of its own thread.
class CaptureLock::Exclusive {
 public:
  /// Waits for brief uses. Empty during a lasting use, or if this thread holds the lock already.
  static std::optional<Exclusive> try_lock();
  ~Exclusive();
  Exclusive(Exclusive&& other) noexcept;
  Exclusive(const Exclusive&) = delete;
  Exclusive& operator=(const Exclusive&) = delete;
  Exclusive& operator=(Exclusive&&) = delete;

 private:
  Exclusive() = default;
  bool held_ = true;
};

/// Separates, on each GPU, runs that may capture a stream from work that waits for the whole device. cuDNN captures the
/// first convolution of a shape, and CUDA lets a device not be waited for while one of its streams is captured: both
/// would fail, as they do with ONNX Runtime's own sessions. Creating and freeing a session waits for its device. Work
/// of one kind goes on side by side, that which does both alone; who came first goes first. For the CPU it does
/// nothing.
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
