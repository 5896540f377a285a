#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>

#include "core/pool/request.hpp"
#include "core/pool/sleep_level.hpp"

namespace ortmulti {

/// What has a device sleep and wake. Each is called in one thread at a time, without a lock of the pool.
struct DeviceSleep {
  explicit DeviceSleep(SleepLevel to) : level(to) {}

  SleepLevel level;
  /// Gives back the memory of `level`, or what the device has of it at another level; false where somebody outside the
  /// pool still uses it at `until`. Throws, with nothing given back.
  /// Where the runners were freed before, the device is asleep whatever it returns or throws.
  std::function<bool(Request::Clock::time_point until)> sleep;
  /// Takes all of the memory again. Throws, and then it may be tried again; Unwanted where nobody waits for it any
  /// more. Where the runners were freed, as many come by Pool::add().
  std::function<void()> wake;
  struct Unwanted : std::exception {};
  bool frees_runners() const { return traits_of(level).frees_runners; }
  bool auto_wake = true;  ///< Whether a request wakes the device. Otherwise it is refused.
  /// How scarce the device's memory is. Of several devices with a number, a request wakes the one with the least; and a
  /// further one while more requests wait than would be answered during a wake.
  std::shared_ptr<const std::atomic<std::int64_t>> crowd;
};

/// What a device is to sleep with instead of what it was asked to: so a repository has its wakes wait for memory.
using SleepGate = std::function<std::shared_ptr<DeviceSleep>(const std::shared_ptr<DeviceSleep>& asked)>;

}  // namespace ortmulti
