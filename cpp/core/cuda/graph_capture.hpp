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

}  // namespace ortmulti
