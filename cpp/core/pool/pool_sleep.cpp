#include "core/pool/pool_sleep.hpp"

#include <algorithm>
#include <utility>

#include "core/pool/device_group.hpp"

namespace ortmulti {

bool PoolSleep::sleep(const Device& device, const std::shared_ptr<DeviceSleep>& asked, Clock::time_point until) {
  check_process();
  std::vector<std::shared_ptr<Runner>> runners;  // freed without the lock, as what the device slept with before
  std::shared_ptr<DeviceSleep> before;
  MutexLock lock(mutex_);
  DeviceGroup& group = known_group(device);
  std::shared_ptr<DeviceSleep> sleeper = asked;
  if (const SleepGate gate = group.gate) {
    lock.unlock();  // it takes locks of its own
    sleeper = gate(asked);
    lock.lock();
  }
  if (!settled_.wait_until(mutex_, until, [&]() ORTMULTI_REQUIRES(mutex_) {
        return group.sleep_settled() || group.falls_with(asked) || closing_;
      })) {
    return false;
  }
  check_may_sleep(group);
  if (group.asleep() && asked->level <= group.sleeper()->level) {
    return true;
  }
  if (!group.asleep()) {
    if (!group.falls_with(asked)) {
      group.fall_asleep(asked, sleeper);
      for (Worker* worker : group.workers) {
        worker->wake.notify_one();  // it may wait for a batch to grow
      }
      refresh();  // others may have waited for this one
    }
    if (!settled_.wait_until(mutex_, until, [&] { return group.busy() == 0 || !group.falls_with(asked); })) {
      return false;
    }
    if (!group.falls_with(asked)) {  // the pool was closed meanwhile, or the device removed
      check_may_sleep(group);
      throw Error(ErrorKind::device, to_string(device) + " was removed from the pool while it fell asleep");
    }
  }
  sleeper = group.asleep() ? sleeper : group.sleeper();
  group.give_back();
  if (sleeper->frees_runners()) {
    runners = group.take_runners();
  }
  lock.unlock();
  runners.clear();
  bool asleep = false;
  std::exception_ptr error;
  try {
    asleep = sleeper->sleep(until);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  asleep |= sleeper->frees_runners();
  if (asleep) {
    before = group.fell_asleep(sleeper);
  } else {
    group.gave_nothing_back();
    if (error || closing_ || group.removed()) {
      before = stop_falling(group);
    }
  }
  if (group.asleep()) {
    wake_for_waiting(group);
  }
  settled_.notify_all();
  if (error) {
    std::rethrow_exception(error);
  }
  return asleep;
}

void PoolSleep::check_may_sleep(const DeviceGroup& group) const {
  check_open();
  if (!group.usable() || group.workers.empty() || group.is_expected()) {
    throw Error(ErrorKind::device,
                to_string(group.device) + " cannot sleep: " +
                    (group.removed()           ? "it was removed from the pool"
                     : !group.broken().empty() ? group.broken()
                                               : "it is still starting; call Pool.wait_ready before"));
  }
}

void PoolSleep::stay_awake(const Device& device, const std::shared_ptr<DeviceSleep>& asked) {
  check_process();
  std::shared_ptr<DeviceSleep> freed;  // without the lock: a gate may have made it
  const MutexLock lock(mutex_);
  DeviceGroup& group = known_group(device);
  if (group.falls_with(asked)) {
    freed = stop_falling(group);
  }
}

void PoolSleep::set_gate(const Device& device, SleepGate gate) {
  const MutexLock lock = enter();
  group_of(device).gate = std::move(gate);
}

void PoolSleep::wake(const Device& device) {
  const MutexLock lock = enter();
  DeviceGroup& group = known_group(device);
  if (group.asleep() && !closing_) {
    begin_wake(group);
  }
  group.ask_awake(!closing_);
}

bool PoolSleep::wait_until_awake(const Device& device, Clock::time_point until) {
  const MutexLock lock = enter();
  DeviceGroup& group = known_group(device);
  for (;;) {
    if (!settled_.wait_until(mutex_, until, [&] { return group.sleep_settled(); })) {
      return false;
    }
    if (closing_) {
      throw Error(ErrorKind::closed, "the pool was closed before " + to_string(device) + " woke");
    }
    if (!group.asleep() || group.workers.empty()) {
      return true;
    }
    if (group.wake_error()) {
      std::rethrow_exception(group.wake_error());
    }
    begin_wake(group);
    group.ask_awake(true);
  }
}

PoolActivity PoolSleep::activity(const Device& device) const {
  PoolActivity activity;
  const MutexLock lock(mutex_);
  const DeviceGroup* const found = find_group(device);
  if (found == nullptr) {
    return activity;
  }
  const DeviceGroup& group = *found;
  const bool takes_any = group.usable() && (groups_.size() == 1 || !group.asleep());
  activity.busy = group.busy();
  activity.waiting = group.waiting.size() + (takes_any ? waiting_.for_any().size() : 0);
  activity.asked_awake = group.asked_awake();
  activity.arrived =
      group.counts.done + group.counts.failed + group.counts.cancelled + activity.busy + activity.waiting;
  if (group.counts.run.count() != 0) {
    activity.run_seconds =
        static_cast<double>(group.counts.run.sum_ns()) * 1e-9 / static_cast<double>(group.counts.run.count());
  }
  return activity;
}

}  // namespace ortmulti
