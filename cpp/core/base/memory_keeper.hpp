#pragma once

#include <chrono>
#include <memory>
#include <thread>

#include "core/base/device.hpp"
#include "core/base/error.hpp"

namespace ortmulti {

/// What keeps memory that it does not need at the moment.
class KeepsMemory {
 public:
  virtual ~KeepsMemory() = default;

  /// Gives back memory of the device that nobody needs now, beside what uses the rest; `all`: also what takes long to
  /// have again.
  virtual void give_back(const Device& device, bool all) = 0;
  /// Gives back what has not been needed for a while. Returns whether there may be more later, without any new use.
  virtual bool give_back_surplus() = 0;
};

/// All of those in this process: they share its memory, and that of its GPUs. A thread has them give back idle memory.
namespace memory_keeper {

constexpr auto look_every = std::chrono::seconds(1);

void add(const std::shared_ptr<KeepsMemory>& keeps);
/// Memory is used: the thread has all give back their idle memory, again and again until there is no more. Without a
/// thread nobody does.
void wake() noexcept;
/// Has all give back what they can. One call at a time.
void give_back(const Device& device);
/// Ends the thread, for good.
void end();

/// Whoever has just answered may hold the answer for a moment longer.
constexpr auto held_on = std::chrono::milliseconds(20);

/// Does the work. Where it lacks memory of the device, all give back what they can, and it is done once more; and again
/// a moment later. The thread must have no DeviceSyncGuard.
auto with_all_memory(const Device& device, const auto& work) {
  for (int tried = 0;; ++tried) {
    try {
      return work();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::out_of_memory || tried == 2) {
        throw;
      }
    }
    if (tried == 1) {
      std::this_thread::sleep_for(held_on);
    }
    give_back(device);
  }
}

}  // namespace memory_keeper

}  // namespace ortmulti
