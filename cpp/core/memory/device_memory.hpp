#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/base/device.hpp"
#include "core/base/retry.hpp"

namespace ortmulti {

/// What this process has memory of a device for.
enum class MemoryUse : std::uint8_t {
  weights,  ///< Those that sessions share.
  arenas,   ///< What ONNX Runtime keeps for sessions: weights of their own, and what their runs need.
  graphs,   ///< CUDA graphs: the arenas of their sessions, inputs and outputs.
  buffers,  ///< Inputs and outputs of requests, and values of users.
};
inline constexpr std::array memory_uses{MemoryUse::weights, MemoryUse::arenas, MemoryUse::graphs, MemoryUse::buffers};
/// Bytes of each use, in their order.
using MemoryUses = std::array<std::uint64_t, memory_uses.size()>;

/// What is in use of a device's memory beside shared weights, arenas and graphs: context, kernels, handles, buffers.
struct UncountedMemory {
  std::int64_t bytes = 0;
  bool of_process = false;  ///< Of this process alone. Else others' is in it: only such of one kind can be compared.
};

/// What has memory that it does not need at the moment, or that only it can count.
class HasMemory {
 public:
  virtual ~HasMemory() = default;

  /// Adds what it has of the device's memory, but for what device_memory::count() was told.
  virtual void add_uses(const Device& /*device*/, MemoryUses& /*uses*/) {}
  /// Gives back memory of the device that nobody needs now, beside what uses the rest; `all`: also what takes long to
  /// have again.
  virtual void give_back(const Device& /*device*/, bool /*all*/) {}
  /// Gives back what has not been needed for a while. Returns whether there may be more later, without any new use.
  virtual bool give_back_surplus() { return false; }
};

/// The process's memory on its devices: who has what, and who gives it back. Any thread may call it.
namespace device_memory {

constexpr auto look_every = std::chrono::seconds(1);
/// Whoever has just answered may hold the answer for a moment longer.
constexpr auto held_on = std::chrono::milliseconds(20);

void add(const std::shared_ptr<HasMemory>& has);
/// Takes note of bytes that are taken for this use from now on; less than 0: no longer.
void count(const Device& device, MemoryUse use, std::int64_t bytes) noexcept;
MemoryUses uses(const Device& device);

/// Memory is used: a thread has all give back their idle memory, again and again until there is no more. Without a
/// thread nobody does.
void wake() noexcept;
/// Has all give back what they can. One call at a time.
void give_back(const Device& device);
/// Lack of memory of the device: all give back what they can, and the work is done once more; and again a moment later.
/// The thread must have no DeviceSyncGuard. The device must outlive it.
Retry lack(const Device& device);
/// Ends the thread, for good.
void end();

}  // namespace device_memory

}  // namespace ortmulti
