// Devices that sleep: they have given memory back, and have it again when a request wants it.

#include <algorithm>
#include <utility>

#include "core/pool/device_group.hpp"
#include "core/pool/pool.hpp"

namespace ortmulti {

bool Pool::sleep(const Device& device, const std::shared_ptr<DeviceSleep>& asked, Clock::time_point until) {
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

void Pool::check_may_sleep(const DeviceGroup& group) const {
  check_open();
  if (!group.usable() || group.workers.empty() || group.is_expected()) {
    throw Error(ErrorKind::device,
                to_string(group.device) + " cannot sleep: " +
                    (group.removed()           ? "it was removed from the pool"
                     : !group.broken().empty() ? group.broken()
                                               : "it is still starting; call Pool.wait_ready before"));
  }
}

std::shared_ptr<DeviceSleep> Pool::stop_falling(DeviceGroup& group) {
  auto sleeper = group.stay_awake();
  if (sleeper) {
    give_waiting(group);
    settled_.notify_all();
  }
  return sleeper;
}

void Pool::stay_awake(const Device& device, const std::shared_ptr<DeviceSleep>& asked) {
  check_process();
  std::shared_ptr<DeviceSleep> freed;  // without the lock: a gate may have made it
  const MutexLock lock(mutex_);
  DeviceGroup& group = known_group(device);
  if (group.falls_with(asked)) {
    freed = stop_falling(group);
  }
}

void Pool::set_gate(const Device& device, SleepGate gate) {
  const MutexLock lock = enter();
  group_of(device).gate = std::move(gate);
}

void Pool::wake(const Device& device) {
  const MutexLock lock = enter();
  DeviceGroup& group = known_group(device);
  if (group.asleep() && !closing_) {
    begin_wake(group);
  }
  group.ask_awake(!closing_);
}

bool Pool::wait_until_awake(const Device& device, Clock::time_point until) {
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

void Pool::wake_for_waiting(DeviceGroup& group) {
  if (!group.waiting.empty()) {
    begin_wake(group);
  } else if (!waiting_.for_any().empty()) {
    wake_for(**waiting_.for_any().begin());
  }
}

void Pool::wake_for(const Request& request) {
  const auto takes_it = [&request](const auto& group) { return group->usable() && group->is_for(request); };
  const bool taken = std::ranges::any_of(groups_, [&](const auto& one) { return takes_it(one) && !one->asleep(); });
  const auto wakes_by_itself = [&](const auto& one) {
    return takes_it(one) && one->asleep() && one->wakes_by_itself();
  };
  const bool any = std::ranges::any_of(groups_, wakes_by_itself);
  DeviceGroup* roomiest = nullptr;
  for (const auto& group : groups_) {
    // Without any, it is a request from before the sleep.
    if (!(any ? wakes_by_itself(group) : !taken && takes_it(group) && group->asleep())) {
      continue;
    }
    if (const auto& crowd = group->sleeper()->crowd) {
      if (roomiest == nullptr || crowd->load() < roomiest->sleeper()->crowd->load()) {
        roomiest = group.get();
      }
    } else if (!taken) {
      begin_wake(*group);
    }
  }
  if (roomiest != nullptr && (!taken || worth_another(*roomiest))) {
    begin_wake(*roomiest);
  }
}

bool Pool::worth_another(const DeviceGroup& group) const {
  std::size_t at_once = 0;
  std::int64_t run_ns = 0;
  std::uint64_t runs = 0;
  for (const auto& other : groups_) {
    if (!other->sleep_settled()) {
      return false;
    }
    if (other->dispatches()) {
      at_once += std::max<std::size_t>(1, other->busy());
      run_ns += other->counts.run.sum_ns();
      runs += other->counts.run.count();
    }
  }
  if (runs == 0 || at_once == 0 || group.counts.wake.count() == 0) {
    return false;
  }
  const double run = static_cast<double>(run_ns) / static_cast<double>(runs);
  const double wake = static_cast<double>(group.counts.wake.sum_ns()) / static_cast<double>(group.counts.wake.count());
  return run * static_cast<double>(waiting_.for_any().size()) / static_cast<double>(at_once) > wake;
}

PoolActivity Pool::activity(const Device& device) const {
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

void Pool::begin_wake(DeviceGroup& group) {
  if (Worker* worker = group.begin_wake()) {
    worker->wake.notify_one();
  }
}

void Pool::wake_up(Worker& worker) {
  DeviceGroup& group = *worker.group;
  std::shared_ptr<DeviceSleep> sleeper = group.sleeper();
  std::vector<std::shared_ptr<Runner>> freed;
  std::exception_ptr error;
  bool unwanted = false;
  try {
    const MutexUnlock unlocked(mutex_);
    sleeper->wake();
  } catch (const DeviceSleep::Unwanted&) {
    unwanted = true;
  } catch (...) {
    error = std::current_exception();
  }
  Requests finished;
  worker.state = Worker::State::idle;
  if (!error && !unwanted) {
    group.woke();  // `sleeper` has it until the lock is released
    give_waiting(group);
  } else if (!error) {
    const bool asked_awake = group.asked_awake();  // since then
    group.did_not_wake(nullptr);
    if (asked_awake) {
      begin_wake(group);
      group.ask_awake(true);
    } else {
      wake_for_waiting(group);
    }
  } else {
    group.did_not_wake(error);
    if (sleeper->frees_runners()) {
      freed = group.take_runners();  // those that have come
    }
    fail_all(group.waiting, error, finished);
    const auto will_take = [](const auto& other) { return other->usable() && !other->asleep(); };
    if (std::ranges::none_of(groups_, will_take)) {
      fail_all(waiting_.for_any(), error, finished);
    }
    queue_has_space_.notify_all();
  }
  settled_.notify_all();
  const MutexUnlock unlocked(mutex_);
  freed.clear();
  announce(finished);
  sleeper.reset();
}

}  // namespace ortmulti
