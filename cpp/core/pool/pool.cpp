#include "core/pool/pool.hpp"

#include <algorithm>
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

// make() still has its own.
// NOLINTNEXTLINE(modernize-pass-by-value)
Pool::Pool(const Options& options) : options_(options), generation_(fork_generation()) {}

Pool::~Pool() { close(true); }

void Pool::check_process() const {
  if (generation_ != fork_generation()) {
    throw Error(ErrorKind::forked,
                "the pool was made before this process was forked, and its threads stayed with the parent; make it "
                "after the fork, or start workers with multiprocessing's 'spawn'");
  }
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
  Group& group = group_of(device);
  if (group.removed) {
    throw Error(ErrorKind::device, to_string(device) + " was removed from the pool");
  }
  worker->group = &group;
  worker->group->workers.reserve(worker->group->workers.size() + 1);
  workers_.reserve(workers_.size() + 1);
  try {
    worker->thread = std::thread(&Pool::work, this, std::ref(*worker));  // which waits for the lock
  } catch (const std::system_error& error) {
    throw Error(ErrorKind::fail, std::string("the system gives no further thread for the pool: ") + error.what());
  }
  group.provisional = false;
  const bool another = std::any_of(group.workers.begin(), group.workers.end(),
                                   [&worker](const Worker* other) { return other->session == worker->session; });
  group.expected -= std::min<std::size_t>(group.expected, another ? 0 : 1);
  worker->group->workers.push_back(worker.get());
  workers_.push_back(std::move(worker));
  Worker& added = *workers_.back();
  added.busy = true;
  ++added.group->busy;
  hand_over(added);
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
  {
    Requests finished;
    Lock lock(mutex_);
    if (freed_) {
      return;
    }
    closing_ = true;
    opening_ = false;
    room_.notify_all();
    for (const auto& worker : workers_) {
      worker->wake.notify_one();  // it may wait for a batch to grow
    }
    if (cancel_waiting) {
      for (const auto& group : groups_) {
        cancel_all(group->waiting, finished);
      }
      cancel_all(anywhere_, finished);
    }
    give_up_starting(finished);
    settled_.notify_all();  // another thread may close it too, and wait for what was cancelled
    lock.unlock();
    announce(finished);
  }
  const std::lock_guard closing(close_mutex_);
  Lock lock(mutex_);
  if (freed_) {
    return;
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
