#pragma once

#include <cstdint>
#include <memory>

#include "core/base/device.hpp"
#include "core/base/non_copyable.hpp"

namespace ortmulti {

/// A run of a session on a GPU, or the binding of its inputs, by the calling thread. ONNX Runtime (1.31.1 does) keeps a
/// stream with handles for each thread that did either. The session's uses free those of threads that have ended, as
/// they begin and as they end. That waits for the device, as nothing may beside a capture (DeviceSyncGuard). So who
/// begins a use after a thread's end has a guard: ended_threads() tells. And a thread that ends has one up to the end
/// of the uses that were under way then.
class DeviceUse : NonCopyable {
 public:
  /// Another number since a thread ended that used a GPU, and from just before its end. A thread that calls ONNX
  /// Runtime before its first DeviceUse, as to create a session, calls this before, else its end does not count.
  static std::uint64_t ended_threads();

  /// For its lifetime, in which its thread waits for no DeviceSyncGuard: who has it may wait for this use.
  explicit DeviceUse(const Device& device);
  ~DeviceUse();

  /// Call it in a use that was a run, once that has succeeded.
  static void ran();

 private:
  struct Period;
  struct Periods;
  class Thread;

  static Periods& periods();

  std::shared_ptr<const Period> period_;
};

}  // namespace ortmulti
