#pragma once

#include <optional>

#include "core/base/device.hpp"

namespace ortmulti {

/// Something that asks CUDA for anything. While a CUDA graph is captured, CUDA refuses much of what other threads ask
/// for, on whichever device, and the capture then fails as well; so every use and every capture takes its turn here.
class CudaUse {
 public:
  /// Creating and freeing sessions lasts: for these a capture does not wait, see SoleUse.
  enum class Kind { brief, lasting };

  /// Waits until nothing is captured. Within another use or a SoleUse of the same thread it does nothing.
  explicit CudaUse(Kind kind = Kind::brief) : CudaUse(true, kind) {}
  /// Nothing for the CPU.
  explicit CudaUse(const Device& device, Kind kind = Kind::brief) : CudaUse(device.is_cuda(), kind) {}
  ~CudaUse();
  CudaUse(const CudaUse&) = delete;
  CudaUse& operator=(const CudaUse&) = delete;

 private:
  CudaUse(bool of_cuda, Kind kind);

  bool of_cuda_;
  Kind kind_;
};

/// Keeps every other thread's uses of CUDA waiting for its lifetime.
class SoleUse {
 public:
  /// To outlive the uses of this thread that begin meanwhile. Waits for brief uses. Nothing where there is a lasting
  /// one, or where this thread is within a use.
  static std::optional<SoleUse> try_begin();
  ~SoleUse();
  SoleUse(SoleUse&& other) noexcept;
  SoleUse(const SoleUse&) = delete;
  SoleUse& operator=(const SoleUse&) = delete;
  SoleUse& operator=(SoleUse&&) = delete;

 private:
  SoleUse() = default;
  bool held_ = true;
};

/// Keeps apart, on each GPU, runs that may capture a stream and what waits for the whole device. cuDNN captures the
/// first convolution of a shape, and CUDA lets a device not be waited for while one of its streams is captured: both
/// would fail, as they do with ONNX Runtime's own sessions. Creating and freeing a session waits for its device. Work
/// of one kind goes on side by side; of both kinds, who came first goes first. For the CPU it does nothing.
class CaptureGuard {
 public:
  enum class Work { may_capture, waits_for_device };

  /// Waits until nothing of the other kind is under way on the device. Not twice in a thread.
  CaptureGuard(const Device& device, Work work);
  ~CaptureGuard();
  CaptureGuard(const CaptureGuard&) = delete;
  CaptureGuard& operator=(const CaptureGuard&) = delete;

 private:
  struct Turns;

  static Turns& turns_of(int device);

  Turns* turns_ = nullptr;
};

}  // namespace ortmulti
