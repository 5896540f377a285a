#include "core/pool/pool.hpp"

#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "core/pool/pool_parts.hpp"
#include "core/process_fork.hpp"

namespace ortmulti {

std::shared_ptr<Pool> Pool::make(const Options& options) {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory)
  return std::shared_ptr<Pool>(new Pool(options), [](Pool* pool) {
    if (pool->generation_ == fork_generation()) {  // else its threads, and who holds its locks, are the parent's
      delete pool;                                 // NOLINT(cppcoreguidelines-owning-memory)
    }
  });
}

Pool::Pool(const Options& options) : options_(options), generation_(fork_generation()) {}

Pool::~Pool() { close(true); }

void Pool::check_process() const {
  if (generation_ != fork_generation()) {
    throw Error(ErrorKind::forked,
                "the pool was made before this process was forked, and its threads stayed with the parent; make it "
                "after the fork, or start workers with multiprocessing's 'spawn'");
  }
}

void Pool::check_accepted(const Request& request) const {
  if (closing_) {
    throw Error(ErrorKind::closed, "the pool is closed");
  }
  std::string broken;
  bool known = false;
  for (const auto& group : groups_) {
    if (!request.device || group->device == *request.device) {
      known = true;
      if (group->broken.empty()) {
        return;
      }
      broken += (broken.empty() ? "" : "; ") + to_string(group->device) + ": " + group->broken;
    }
  }
  if (!known && request.device) {
    throw Error(ErrorKind::invalid_argument, "the pool has no session on " + to_string(*request.device));
  }
  throw Error(ErrorKind::device, "the pool has no session left that could run this: " + broken);
}

void Pool::add(std::shared_ptr<Runner> runner) {
  check_process();
  const Lock lock(mutex_);
  if (closing_) {
    throw Error(ErrorKind::closed, "the pool is closed");
  }
  auto worker = std::make_unique<Worker>();
  worker->runner = std::move(runner);
  worker->session = worker->runner->session();
  const Device device = worker->runner->device();
  const auto found =
      std::find_if(groups_.begin(), groups_.end(), [&device](const auto& group) { return group->device == device; });
  std::unique_ptr<Group> new_group;
  if (found == groups_.end()) {
    new_group = std::make_unique<Group>();
    new_group->device = device;
    groups_.reserve(groups_.size() + 1);
  }
  worker->group = new_group ? new_group.get() : found->get();
  worker->group->workers.reserve(worker->group->workers.size() + 1);
  workers_.reserve(workers_.size() + 1);
  try {
    worker->thread = std::thread(&Pool::work, this, std::ref(*worker));  // which waits for the lock
  } catch (const std::system_error& error) {
    throw Error(ErrorKind::fail, std::string("the system gives no further thread for the pool: ") + error.what());
  }
  if (new_group) {
    groups_.push_back(std::move(new_group));
  }
  worker->group->workers.push_back(worker.get());
  workers_.push_back(std::move(worker));
  Worker& added = *workers_.back();
  added.busy = true;
  ++added.group->busy;
  hand_over(added);
}

PoolStats Pool::stats() {
  check_process();
  const Lock lock(mutex_);
  PoolStats stats;
  stats.waiting = anywhere_.size();
  stats.rejected = rejected_;
  stats.cancelled_waiting = cancelled_waiting_;
  stats.failed_waiting = failed_waiting_;
  stats.unsplit = unsplit_;
  stats.why_apart = why_apart_;
  for (const auto& group : groups_) {
    DeviceStats device;
    device.device = group->device;
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
    device.queue = group->queue;
    device.copy = group->copy;
    device.run = group->run;
    device.whole = group->whole;
    stats.devices.push_back(std::move(device));
  }
  return stats;
}

std::vector<std::shared_ptr<Runner>> Pool::runners() const {
  check_process();
  const Lock lock(mutex_);
  std::vector<std::shared_ptr<Runner>> runners;
  runners.reserve(workers_.size());
  for (const auto& worker : workers_) {
    if (!closing_) {
      runners.push_back(worker->runner);
    }
  }
  return runners;
}

bool Pool::closed() const {
  if (generation_ != fork_generation()) {
    return false;
  }
  const Lock lock(mutex_);
  return closing_;
}

void Pool::close(bool cancel_waiting) {
  if (generation_ != fork_generation()) {
    return;
  }
  const std::lock_guard closing(close_mutex_);
  Lock lock(mutex_);
  if (freed_) {
    return;
  }
  closing_ = true;
  room_.notify_all();
  for (const auto& worker : workers_) {
    worker->wake.notify_one();  // it may wait for a batch to grow
  }
  if (cancel_waiting) {
    Requests finished;
    for (const auto& group : groups_) {
      while (!group->waiting.empty()) {
        finished.push_back(unqueue(*group->waiting.front()));
      }
    }
    while (!anywhere_.empty()) {
      finished.push_back(unqueue(*anywhere_.front()));
    }
    for (const auto& request : finished) {
      ++cancelled_waiting_;
      finish(*request, Request::Outcome::cancelled,
             make_error(ErrorKind::closed, "the pool was closed before the request began"));
    }
    lock.unlock();
    announce(finished);
    lock.lock();
  }
  settled_.wait(lock, [this] { return settled(); });
  timer_stops_ = true;
  timers_changed_.notify_all();
  for (const auto& worker : workers_) {
    worker->stopping = true;
    worker->wake.notify_one();
  }
  lock.unlock();
  for (const auto& worker : workers_) {
    worker->thread.join();
    worker->runner.reset();
  }
  if (timer_.joinable()) {
    timer_.join();
  }
  lock.lock();
  freed_ = true;
}
}  // namespace ortmulti
