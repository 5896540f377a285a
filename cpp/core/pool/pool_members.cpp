#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "core/pool/pool_parts.hpp"

namespace ortmulti {
namespace {

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  } catch (...) {
    return "unknown";
  }
}

void add_to(PoolStats& total, const PoolStats& more) {
  total.waiting += more.waiting;
  total.rejected += more.rejected;
  total.cancelled_waiting += more.cancelled_waiting;
  total.failed_waiting += more.failed_waiting;
  total.unbatched += more.unbatched;
  if (total.why_unbatched.empty()) {
    total.why_unbatched = more.why_unbatched;
  }
  for (const DeviceStats& device : more.devices) {
    const auto found = std::find_if(total.devices.begin(), total.devices.end(),
                                    [&device](const auto& other) { return other.device == device.device; });
    if (found == total.devices.end()) {
      total.devices.push_back(device);
      total.devices.back().state = DeviceState::removed;
      total.devices.back().sessions = 0;
      continue;
    }
    found->busy += device.busy;
    found->waiting += device.waiting;
    found->done += device.done;
    found->failed += device.failed;
    found->cancelled += device.cancelled;
    found->retried += device.retried;
    found->runs += device.runs;
    found->queue.merge(device.queue);
    found->copy.merge(device.copy);
    found->run.merge(device.run);
    found->total.merge(device.total);
    found->batch_size.merge(device.batch_size);
    found->sleeps += device.sleeps;
    found->wakes += device.wakes;
    found->wake.merge(device.wake);
  }
}

}  // namespace

bool Pool::serves(const Device& device) const {
  check_process();
  const Lock lock(mutex_);
  return std::any_of(groups_.begin(), groups_.end(), [&device](const auto& group) {
    return group->device == device && usable(*group) && group->suspended.empty();
  });
}

bool Pool::usable(const Group& group) {
  return group.broken.empty() && !group.removed && (!group.workers.empty() || group.expected > 0);
}

Pool::Group& Pool::group_of(const Device& device) {
  const auto found =
      std::find_if(groups_.begin(), groups_.end(), [&device](const auto& group) { return group->device == device; });
  if (found != groups_.end()) {
    return **found;
  }
  auto group = std::make_unique<Group>();
  group->device = device;
  group->provisional = true;
  groups_.push_back(std::move(group));
  return *groups_.back();
}

Pool::Group& Pool::known_group(const Device& device) {
  const auto found = std::find_if(groups_.begin(), groups_.end(), [&device](const auto& group) {
    return !group->provisional && group->device == device;
  });
  if (found == groups_.end()) {
    throw Error(ErrorKind::invalid_argument, "the pool has no session on " + to_string(device));
  }
  return **found;
}

void Pool::check_accepted(const Request& request) const {
  if (failure_) {
    std::rethrow_exception(failure_);
  }
  check_open();
  std::string problems;
  bool known = false;
  for (const auto& group : groups_) {
    if (!group->provisional && (!request.device || group->device == *request.device)) {
      known = true;
      const bool refuses = group->rest != Group::Rest::awake && group->sleeper && !group->sleeper->auto_wake;
      if (usable(*group) && !refuses) {
        return;
      }
      problems += (problems.empty() ? "" : "; ") + to_string(group->device) + ": " +
                  (group->removed          ? "it was removed"
                   : group->broken.empty() ? "it is asleep, and wakes with Pool.wake"
                                           : group->broken);
    }
  }
  if (opening_ && !(request.device && known)) {
    return;
  }
  if (!known && request.device) {
    throw Error(ErrorKind::invalid_argument, "the pool has no session on " + to_string(*request.device) +
                                                 ": name one of Pool.devices, or add it with Pool.add_devices");
  }
  throw Error(ErrorKind::device, "the pool has no session left that could run this: " + problems);
}

void Pool::expect(const Device& device, std::size_t sessions) {
  check_process();
  const Lock lock(mutex_);
  check_open();
  Group& group = group_of(device);
  group.expected += sessions;
  group.provisional = false;
  group.removed = false;
  group.never_came = false;
  group.broken.clear();
  group.suspended.clear();
}

void Pool::not_coming(const Device& device, std::size_t sessions, const std::exception_ptr& error) {
  check_process();
  Requests finished;
  {
    const Lock lock(mutex_);
    Group& group = group_of(device);
    group.expected -= std::min(group.expected, sessions);
    if (group.expected > 0 || !group.workers.empty() || group.removed || group.never_came) {
      return;
    }
    group.never_came = true;
    group.broken = text_of(error);
    fail_waiting(group, error, finished);
  }
  announce(finished);
}

void Pool::set_opening(bool opening) {
  check_process();
  Requests finished;
  {
    const Lock lock(mutex_);
    opening_ = opening && !closing_;
    if (!opening) {
      for (const auto& group : groups_) {
        if (group->provisional) {
          fail_all(group->waiting,
                   make_error(ErrorKind::invalid_argument, "the pool has no session on " + to_string(group->device)),
                   finished);
        }
      }
      if (!any_usable()) {
        fail_all(anywhere_, make_error(ErrorKind::device, "the pool has no session left that could run this"),
                 finished);
      }
    }
  }
  announce(finished);
}

void Pool::set_ready(const void* session, bool ready) {
  check_process();
  const Lock lock(mutex_);
  for (const auto& worker : workers_) {
    if (worker->runner && worker->session == session && worker->away == ready) {
      worker->away = !ready;
      if (ready && !worker->busy) {
        worker->busy = true;
        ++worker->group->busy;
        hand_over(*worker);
      }
    }
  }
}

void Pool::give_up(const void* session, const std::string& reason) {
  check_process();
  Requests finished;
  {
    const Lock lock(mutex_);
    Group* group = nullptr;
    for (const auto& worker : workers_) {
      if (worker->runner && worker->session == session) {
        worker->away = true;
        group = worker->group;
      }
    }
    if (group == nullptr) {
      return;
    }
    auto& workers = group->workers;
    const auto of_session = [session](const Worker* worker) { return worker->session == session; };
    if (!std::all_of(workers.begin(), workers.end(), of_session)) {
      workers.erase(std::remove_if(workers.begin(), workers.end(), of_session), workers.end());
    } else if (group->broken.empty()) {
      take_out(*group, reason, finished);
    }
  }
  announce(finished);
}

void Pool::fail(const std::exception_ptr& error) {
  check_process();
  Requests finished;
  {
    const Lock lock(mutex_);
    if (!failure_) {
      failure_ = error;
    }
    for (const auto& group : groups_) {
      fail_all(group->waiting, failure_, finished);
    }
    fail_all(anywhere_, failure_, finished);
    room_.notify_all();
  }
  announce(finished);
}

bool Pool::remove(const Device& device, Clock::time_point until) {
  check_process();
  Requests finished;
  std::vector<std::unique_ptr<Worker>> freed;
  std::shared_ptr<DeviceSleep> sleeper;  // freed without the lock
  std::shared_ptr<DeviceSleep> given_up;
  Lock lock(mutex_);
  Group& group = known_group(device);
  group.removed = true;
  group.expected = 0;
  group.asked_awake = false;
  given_up = stop_falling(group);
  fail_waiting(group, make_error(ErrorKind::device, to_string(device) + " was removed from the pool"), finished);
  for (Worker* worker : group.workers) {
    worker->wake.notify_one();  // it may wait for a batch to grow
  }
  refresh();
  lock.unlock();
  announce(finished);
  lock.lock();
  if (!settled_.wait_until(lock, until, [&] { return !active(group) || closing_ || !group.removed; })) {
    return false;
  }
  if (closing_ || !group.removed) {  // close() frees them; or the device is wanted again
    return true;
  }
  group.workers.clear();
  group.in_flight.reset();
  sleeper.swap(group.sleeper);
  group.rest = Group::Rest::awake;
  const auto leaving = std::stable_partition(workers_.begin(), workers_.end(),
                                             [&group](const auto& worker) { return worker->group != &group; });
  std::move(leaving, workers_.end(), std::back_inserter(freed));
  workers_.erase(leaving, workers_.end());
  for (const auto& worker : freed) {
    worker->stopping = true;
    worker->wake.notify_one();
  }
  lock.unlock();
  for (const auto& worker : freed) {
    worker->thread.join();
  }
  return true;
}

void Pool::fail_all(Queue& queue, const std::exception_ptr& error, Requests& finished) {
  while (!queue.empty()) {
    finished.push_back(unqueue(*queue.front()));
    ++failed_waiting_;
    finish(*finished.back(), Request::Outcome::failed, error);
  }
  if (closing_ && settled()) {
    settled_.notify_all();
  }
}

void Pool::fail_waiting(Group& group, const std::exception_ptr& error, Requests& finished) {
  fail_all(group.waiting, error, finished);
  if (any_usable()) {
    if (!anywhere_.empty()) {
      wake_for(*anywhere_.front());  // all others may be asleep
    }
  } else if (!opening_) {
    fail_all(anywhere_, error, finished);
  }
  room_.notify_all();  // who waits for this device waits in vain
}

void Pool::cancel_all(Queue& queue, Requests& finished) {
  while (!queue.empty()) {
    finished.push_back(unqueue(*queue.front()));
    ++cancelled_waiting_;
    finish(*finished.back(), Request::Outcome::cancelled,
           make_error(ErrorKind::closed, "the pool was closed before the request began"));
  }
}

void Pool::give_up_starting(Requests& finished) {
  const std::string reason = "the pool was closed before it had a session";
  for (const auto& group : groups_) {
    group->expected = 0;
    if (group->workers.empty() && !group->removed && group->broken.empty() && !group->provisional) {
      group->never_came = true;
      group->broken = reason;
    }
  }
  const std::exception_ptr error = make_error(ErrorKind::closed, reason);
  for (const auto& group : groups_) {
    if (!usable(*group)) {
      fail_waiting(*group, error, finished);
    }
  }
  if (!any_usable()) {
    fail_all(anywhere_, error, finished);
  }
}

DeviceState Pool::state_of(const Group& group) {
  if (group.removed) {
    return DeviceState::removed;
  }
  if (!group.broken.empty()) {
    return group.never_came ? DeviceState::failed : DeviceState::broken;
  }
  return group.workers.empty() ? DeviceState::starting : DeviceState::ready;
}

PoolStats Pool::own_stats() const {
  PoolStats stats;
  stats.waiting = anywhere_.size();
  stats.rejected = rejected_;
  stats.cancelled_waiting = cancelled_waiting_;
  stats.failed_waiting = failed_waiting_;
  stats.unbatched = unbatched_;
  stats.why_unbatched = why_unbatched_;
  for (const auto& group : groups_) {
    if (group->provisional) {
      continue;
    }
    DeviceStats device;
    device.device = group->device;
    device.state = state_of(*group);
    std::set<const void*> sessions;
    for (const Worker* worker : group->workers) {
      sessions.insert(worker->session);
    }
    device.sessions = sessions.size();
    device.busy = group->busy;
    device.waiting = group->waiting.size();
    device.done = group->done;
    device.failed = group->failed;
    device.cancelled = group->cancelled;
    device.retried = group->retried;
    device.runs = group->runs;
    device.broken = group->broken;
    device.in_flight = group->workers.size();
    if (const std::optional<InFlight>& chosen = group->in_flight) {
      device.in_flight = chosen->limit();
      device.why_in_flight = chosen->why();
    }
    device.suspended = usable(*group) ? group->suspended : "";
    const bool awake = group->rest == Group::Rest::awake || group->rest == Group::Rest::falling_asleep;
    device.asleep = awake ? "" : group->sleeper->level;
    device.sleeps = group->sleeps;
    device.wakes = group->wakes;
    device.wake = group->wake;
    device.queue = group->queue;
    device.copy = group->copy;
    device.run = group->run;
    device.total = group->total;
    device.batch_size = group->batch_size;
    stats.devices.push_back(std::move(device));
  }
  return stats;
}

PoolStats Pool::stats() {
  check_process();
  PoolStats stats;
  std::shared_ptr<Pool> before;
  {
    const Lock lock(mutex_);
    stats = own_stats();
    add_to(stats, done_before_);
    before = before_;
  }
  if (before) {
    const Lock lock(before->mutex_);
    add_to(stats, before->own_stats());
  }
  return stats;
}

void Pool::continue_from(const std::shared_ptr<Pool>& before) {
  check_process();
  // What came before that one is kept as numbers: a pool is closed before another one continues its successor. Both
  // pools count it, so that nobody sees it missing.
  PoolStats earlier;
  std::shared_ptr<Pool> older;
  {
    const Lock lock(before->mutex_);
    if (before->before_) {
      const Lock lock_older(before->before_->mutex_);
      add_to(before->done_before_, before->before_->own_stats());
    }
    older.swap(before->before_);
    earlier = before->done_before_;
  }
  const Lock lock(mutex_);
  before_ = before;
  add_to(done_before_, earlier);
}

}  // namespace ortmulti
