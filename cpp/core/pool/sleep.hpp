#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>

#include "core/policy/sleep_level.hpp"
#include "core/pool/request.hpp"

namespace ortmulti {

/// Has a device sleep and wake. One thread at a time calls each function, without a lock of the pool.
struct DeviceSleep {
  explicit DeviceSleep(SleepLevel to) : level(to) {}

  SleepLevel level;
  /// Gives back the memory of `level`, as far as the device still has it. False if somebody outside the pool still uses
  /// it at `until`. If it throws, it has given back nothing. If the runners were freed before, the device is asleep
  /// whatever it returns or throws.
  std::function<bool(Request::Clock::time_point until)> sleep;
  /// Takes all memory again. If it throws, it may be called again; it throws Unwanted if nobody waits any more. If the
  /// runners were freed, Pool::add() gets as many new ones.
  std::function<void()> wake;
  struct Unwanted : std::exception {};
  bool frees_runners() const { return traits_of(level).frees_runners; }
  bool auto_wake = true;  ///< Whether a request wakes the device. Otherwise it is refused.
  /// How scarce the device's memory is. Of several devices with a number, a request wakes the one with the lowest.
  /// Another one wakes while more requests wait than are answered during a wake.
  std::shared_ptr<const std::atomic<std::int64_t>> crowd;
};

/// Replaces the sleeper of a request to sleep. So a repository has wakes wait for memory.
using SleepGate = std::function<std::shared_ptr<DeviceSleep>(const std::shared_ptr<DeviceSleep>& asked)>;

}  // namespace ortmulti
