#pragma once

#include <memory>

#include "core/policy/residency_policy.hpp"
#include "core/pool/workers.hpp"

namespace ortmulti {

/// The part of Pool for devices that sleep: they have given memory back, and have it again when a request wants it.
class PoolSleep : public Workers {
 public:
  /// Puts a device to sleep. It gets no more requests, runs there are answered, and then `asked` gives memory back. A
  /// request for this device wakes it, as does one for any device if none is awake. A sleeping device may give back its
  /// sessions, too. A wake or another sleep ends first. Waits until `until`; false: call it again with the same
  /// `asked`, or call stay_awake(). If it throws Error, the device is as it was.
  bool sleep(const Device& device, const std::shared_ptr<DeviceSleep>& asked, Clock::time_point until);
  /// Takes back a sleep() that returned false.
  void stay_awake(const Device& device, const std::shared_ptr<DeviceSleep>& asked);
  /// Sets what the device's sleeps go through; its sessions may come later. Callers' threads run nothing there any
  /// more, since memory is scarce.
  void set_gate(const Device& device, SleepGate gate);
  /// Begins to wake the device, in a thread of the pool, if it is asleep.
  void wake(const Device& device);
  /// Waits until the device is awake; throws the error of its wake. A device that fell asleep again is woken again.
  /// False if `until` comes first.
  bool wait_until_awake(const Device& device, Clock::time_point until);
  PoolActivity activity(const Device& device) const;

 protected:
  using Workers::Workers;

 private:
  void check_may_sleep(const DeviceGroup& group) const ORTMULTI_REQUIRES(mutex_);
};

}  // namespace ortmulti
