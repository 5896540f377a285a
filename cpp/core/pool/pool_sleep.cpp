// Devices that sleep: they have given memory back, and have it again when a request wants it.

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/pool/pool_parts.hpp"

namespace ortmulti {

bool Pool::sleep(const Device& device, const std::shared_ptr<DeviceSleep>& sleeper, Clock::time_point until) {
  using Rest = Group::Rest;
  check_process();
  std::vector<std::shared_ptr<Runner>> runners;  // freed without the lock, as what the device slept with before
  std::shared_ptr<DeviceSleep> before;
  Lock lock(mutex_);
  Group& group = known_group(device);
  const auto falls = [&] { return group.rest == Rest::falling_asleep && group.sleeper == sleeper; };
  const auto rests = [&] { return group.rest == Rest::awake || group.rest == Rest::asleep; };
  if (!settled_.wait_until(lock, until, [&] { return rests() || falls() || closing_; })) {
    return false;
  }
  check_may_sleep(group);
  if (group.rest == Rest::asleep) {
    if (!sleeper->frees_runners() || group.sleeper->frees_runners()) {
      return true;
    }
    before = std::exchange(group.sleeper, sleeper);
  } else {
    if (group.rest == Rest::awake) {
      group.rest = Rest::falling_asleep;
      group.sleeper = sleeper;
      for (Worker* worker : group.workers) {
        worker->wake.notify_one();  // it may wait for a batch to grow
      }
      refresh();  // others may have waited for this one
    }
    if (!settled_.wait_until(lock, until, [&] { return group.busy == 0 || !falls(); })) {
      return false;
    }
    if (!falls()) {  // the pool was closed meanwhile, or the device removed
      check_may_sleep(group);
      throw Error(ErrorKind::device, to_string(device) + " was removed from the pool while it fell asleep");
    }
  }
  group.rest = Rest::giving_back;
  if (sleeper->frees_runners()) {
    runners = take_runners(group);
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
    group.rest = Rest::asleep;
    group.sleeps += before ? 0 : 1;
    wake_for_waiting(group);
  } else {
    group.rest = Rest::falling_asleep;
    if (error || closing_ || group.removed) {
      before = stop_falling(group);
    }
  }
  settled_.notify_all();
  if (error) {
    std::rethrow_exception(error);
  }
  return asleep;
}

void Pool::check_may_sleep(const Group& group) const {
  check_open();
  if (!usable(group) || group.workers.empty() || group.expected > 0) {
    throw Error(ErrorKind::device, to_string(group.device) + " cannot sleep: " +
                                       (group.removed           ? "it was removed from the pool"
                                        : !group.broken.empty() ? group.broken
                                                                : "it is still starting; call Pool.wait_ready before"));
  }
}

std::shared_ptr<DeviceSleep> Pool::stop_falling(Group& group) {
  if (group.rest != Group::Rest::falling_asleep) {
    return nullptr;
  }
  group.rest = Group::Rest::awake;
  give_waiting(group);
  settled_.notify_all();
  return std::move(group.sleeper);
}

void Pool::stay_awake(const Device& device, const std::shared_ptr<DeviceSleep>& sleeper) {
  check_process();
  std::shared_ptr<DeviceSleep> freed;  // without the lock
  const Lock lock(mutex_);
  Group& group = known_group(device);
  if (group.sleeper == sleeper) {
    freed = stop_falling(group);
  }
}

void Pool::wake(const Device& device) {
  check_process();
  const Lock lock(mutex_);
  Group& group = known_group(device);
  if (group.rest == Group::Rest::asleep && !closing_) {
    begin_wake(group);
  }
  group.asked_awake = group.rest == Group::Rest::waking && !closing_;
}

bool Pool::wait_until_awake(const Device& device, Clock::time_point until) {
  using Rest = Group::Rest;
  check_process();
  Lock lock(mutex_);
  Group& group = known_group(device);
  for (;;) {
    if (!settled_.wait_until(lock, until, [&] { return group.rest == Rest::awake || group.rest == Rest::asleep; })) {
      return false;
    }
    if (closing_) {
      throw Error(ErrorKind::closed, "the pool was closed before " + to_string(device) + " woke");
    }
    if (group.rest == Rest::awake || group.workers.empty()) {
      return true;
    }
    if (group.wake_error) {
      std::rethrow_exception(group.wake_error);
    }
    begin_wake(group);
    group.asked_awake = true;
  }
}

void Pool::wake_for_waiting(Group& group) {
  if (!group.waiting.empty()) {
    begin_wake(group);
  } else if (!anywhere_.empty()) {
    wake_for(*anywhere_.front());
  }
}

void Pool::wake_for(const Request& request) {
  const auto takes_it = [&request](const auto& group) {
    return usable(*group) && (!request.device || *request.device == group->device);
  };
  const auto sleeps = [](const auto& group) { return group->rest == Group::Rest::asleep; };
  const bool taken =
      std::any_of(groups_.begin(), groups_.end(), [&](const auto& one) { return takes_it(one) && !sleeps(one); });
  const auto wakes_by_itself = [&](const auto& one) { return takes_it(one) && sleeps(one) && one->sleeper->auto_wake; };
  const bool any = std::any_of(groups_.begin(), groups_.end(), wakes_by_itself);
  Group* roomiest = nullptr;
  for (const auto& group : groups_) {
    // Without any, it is a request from before the sleep.
    if (!(any ? wakes_by_itself(group) : !taken && takes_it(group) && sleeps(group))) {
      continue;
    }
    if (const auto& crowd = group->sleeper->crowd) {
      if (roomiest == nullptr || crowd->load() < roomiest->sleeper->crowd->load()) {
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

bool Pool::worth_another(const Group& group) const {
  std::size_t at_once = 0;
  std::int64_t run_ns = 0;
  std::uint64_t runs = 0;
  for (const auto& other : groups_) {
    if (other->rest != Group::Rest::awake && other->rest != Group::Rest::asleep) {
      return false;
    }
    if (dispatches(*other)) {
      at_once += std::max<std::size_t>(1, other->busy);
      run_ns += other->run.sum_ns();
      runs += other->run.count();
    }
  }
  if (runs == 0 || at_once == 0 || group.wake.count() == 0) {
    return false;
  }
  const double run = static_cast<double>(run_ns) / static_cast<double>(runs);
  const double wake = static_cast<double>(group.wake.sum_ns()) / static_cast<double>(group.wake.count());
  return run * static_cast<double>(anywhere_.size()) / static_cast<double>(at_once) > wake;
}

PoolActivity Pool::activity(const Device& device) const {
  PoolActivity activity;
  const Lock lock(mutex_);
  const auto found =
      std::find_if(groups_.begin(), groups_.end(), [&device](const auto& group) { return group->device == device; });
  if (found == groups_.end()) {
    return activity;
  }
  const Group& group = **found;
  const bool takes_any = usable(group) && (groups_.size() == 1 || group.rest != Group::Rest::asleep);
  activity.busy = group.busy;
  activity.waiting = group.waiting.size() + (takes_any ? anywhere_.size() : 0);
  activity.asked_awake = group.asked_awake;
  activity.arrived = group.done + group.failed + group.cancelled + activity.busy + activity.waiting;
  if (group.run.count() != 0) {
    activity.run_seconds = static_cast<double>(group.run.sum_ns()) * 1e-9 / static_cast<double>(group.run.count());
  }
  return activity;
}

void Pool::begin_wake(Group& group) {
  if (group.workers.empty()) {
    return;  // it is being removed
  }
  group.rest = Group::Rest::waking;
  group.wake_error = nullptr;
  group.woken = Clock::now();
  group.workers.front()->wakes_device = true;
  group.workers.front()->wake.notify_one();
}

std::vector<std::shared_ptr<Runner>> Pool::take_runners(Group& group) {
  std::vector<std::shared_ptr<Runner>> runners;
  runners.reserve(group.workers.size());
  for (Worker* worker : group.workers) {
    runners.push_back(std::move(worker->runner));
  }
  return runners;
}

bool Pool::give_back_runners(const std::vector<std::shared_ptr<Runner>>& runners) {
  const auto found = std::find_if(groups_.begin(), groups_.end(), [&runners](const auto& group) {
    return group->rest == Group::Rest::waking && group->sleeper->frees_runners() && !runners.empty() &&
           group->device == runners.front()->device();
  });
  if (found == groups_.end()) {
    return false;
  }
  std::vector<Worker*> places;
  std::copy_if((*found)->workers.begin(), (*found)->workers.end(), std::back_inserter(places),
               [](const Worker* worker) { return worker->runner == nullptr; });
  if (places.size() < runners.size()) {
    throw Error(ErrorKind::fail, to_string((*found)->device) + " woke with more sessions than it had");
  }
  for (std::size_t i = 0; i < runners.size(); ++i) {
    places[i]->runner = runners[i];
    places[i]->session = runners[i]->session();
    places[i]->away = false;
  }
  return true;
}

void Pool::wake_up(Group& group, Lock& lock) {
  std::shared_ptr<DeviceSleep> sleeper = group.sleeper;
  std::vector<std::shared_ptr<Runner>> freed;
  lock.unlock();
  std::exception_ptr error;
  bool unwanted = false;
  try {
    sleeper->wake();
  } catch (const DeviceSleep::Unwanted&) {
    unwanted = true;
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  Requests finished;
  const bool asked_awake = std::exchange(group.asked_awake, false);
  if (unwanted) {
    group.rest = Group::Rest::asleep;
    if (asked_awake) {  // since then
      begin_wake(group);
      group.asked_awake = true;
    } else {
      wake_for_waiting(group);
    }
  } else if (!error) {
    group.rest = Group::Rest::awake;
    group.sleeper.reset();  // `sleeper` has it until the lock is released
    ++group.wakes;
    group.wake.record((Clock::now() - group.woken).count());
    give_waiting(group);
  } else {
    group.rest = Group::Rest::asleep;
    group.wake_error = error;
    if (sleeper->frees_runners()) {
      freed = take_runners(group);  // those that have come
    }
    fail_all(group.waiting, error, finished);
    const auto will_take = [](const auto& other) { return usable(*other) && other->rest != Group::Rest::asleep; };
    if (std::none_of(groups_.begin(), groups_.end(), will_take)) {
      fail_all(anywhere_, error, finished);
    }
    room_.notify_all();
  }
  settled_.notify_all();
  lock.unlock();
  freed.clear();
  announce(finished);
  sleeper.reset();
  lock.lock();
}

}  // namespace ortmulti
