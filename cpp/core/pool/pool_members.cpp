#include <algorithm>
#include <iterator>

#include "core/pool/device_group.hpp"
#include "core/pool/pool.hpp"

namespace ortmulti {

void Pool::expect(const Device& device, std::size_t sessions) {
  const MutexLock lock = enter();
  check_open();
  group_of(device).expect(sessions);
}

void Pool::not_coming(const Device& device, std::size_t sessions, const std::exception_ptr& error) {
  Requests finished;
  {
    const MutexLock lock = enter();
    DeviceGroup& group = group_of(device);
    if (group.not_coming(sessions, text_of(error))) {
      fail_waiting(group, error, finished);
    }
  }
  announce(finished);
}

void Pool::set_opening(bool opening) {
  Requests finished;
  {
    const MutexLock lock = enter();
    opening_ = opening && !closing_;
    if (!opening) {
      for (const auto& group : groups_) {
        if (!group->known()) {
          fail_all(group->waiting,
                   make_error(ErrorKind::invalid_argument, "the pool has no session on " + to_string(group->device)),
                   finished);
        }
      }
      if (!any_usable()) {
        fail_all(waiting_.for_any(), make_error(ErrorKind::device, "the pool has no session left that could run this"),
                 finished);
      }
    }
  }
  announce(finished);
}

void Pool::fail(const std::exception_ptr& error) {
  Requests finished;
  {
    const MutexLock lock = enter();
    if (!failure_) {
      failure_ = error;
    }
    for (const auto& group : groups_) {
      fail_all(group->waiting, failure_, finished);
    }
    fail_all(waiting_.for_any(), failure_, finished);
    queue_has_space_.notify_all();
  }
  announce(finished);
}

bool Pool::remove(const Device& device, Clock::time_point until) {
  check_process();
  Requests finished;
  std::vector<std::unique_ptr<Worker>> freed;
  std::shared_ptr<DeviceSleep> sleeper;  // freed without the lock
  std::shared_ptr<DeviceSleep> given_up;
  MutexLock lock(mutex_);
  DeviceGroup& group = known_group(device);
  group.remove();
  given_up = stop_falling(group);
  fail_waiting(group, make_error(ErrorKind::device, to_string(device) + " was removed from the pool"), finished);
  for (Worker* worker : group.workers) {
    worker->wake.notify_one();  // it may wait for a batch to grow
  }
  refresh();
  lock.unlock();
  announce(finished);
  lock.lock();
  if (!settled_.wait_until(
          mutex_, until, [&]() ORTMULTI_REQUIRES(mutex_) { return !group.active() || closing_ || !group.removed(); })) {
    return false;
  }
  if (closing_ || !group.removed()) {  // close() frees them; or the device is wanted again
    return true;
  }
  sleeper = group.forget();
  const auto leaving =
      std::ranges::stable_partition(workers_, [&group](const auto& worker) { return worker->group != &group; });
  std::ranges::move(leaving, std::back_inserter(freed));
  workers_.erase(leaving.begin(), leaving.end());
  for (const auto& worker : freed) {
    worker->state = Worker::State::ending;
    worker->wake.notify_one();
  }
  lock.unlock();
  freed.clear();  // joins their threads
  return true;
}

PoolStats Pool::own_stats() const {
  PoolStats stats = counts_;
  stats.waiting = waiting_.for_any().size();
  const bool packed = options_.batching.padding && options_.batching.padding->packed;
  for (const auto& group : groups_) {
    if (group->known()) {
      stats.devices.push_back(group->stats());
      if (std::string& why = stats.devices.back().why_padding; packed && !why.empty()) {
        why.insert(0, "none is computed, as the model leaves padding out; ");
      }
    }
  }
  return stats;
}

PoolStats Pool::stats() {
  check_process();
  PoolStats stats;
  std::shared_ptr<Pool> before;
  {
    const MutexLock lock(mutex_);
    stats = own_stats();
    stats.add(done_before_);
    before = before_;
  }
  if (before) {
    const MutexLock lock(before->mutex_);
    stats.add(before->own_stats());
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
    const MutexLock lock(before->mutex_);
    if (before->before_) {
      const MutexLock lock_older(before->before_->mutex_);
      before->done_before_.add(before->before_->own_stats());
    }
    older.swap(before->before_);
    earlier = before->done_before_;
  }
  const MutexLock lock(mutex_);
  before_ = before;
  done_before_.add(earlier);
}

}  // namespace ortmulti
