#include "core/pool/pool.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/fork.hpp"
#include "core/memory/device_memory.hpp"
#include "core/pool/device_group.hpp"

namespace ortmulti {

std::shared_ptr<Pool> Pool::make(const Options& options) {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory)
  std::shared_ptr<Pool> made(new Pool(options), [](Pool* pool) {
    if (pool->generation_ != fork_generation()) {  // its threads, and who holds its locks, are the parent's
      return;
    }
    const auto free = [pool] { delete pool; };  // NOLINT(cppcoreguidelines-owning-memory)
    if (!NoWaiting::here()) {
      free();
      return;
    }
    try {
      std::thread(free).detach();
    } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch): it stays, and nobody can ask it
    }
  });
  device_memory::add(made);
  return made;
}

// make() still has its own.
// NOLINTNEXTLINE(modernize-pass-by-value)
Pool::Pool(const Options& options) : PoolMemory(options) {}

Pool::~Pool() { close(true); }

void Pool::add(const std::vector<std::shared_ptr<Runner>>& runners, std::optional<std::size_t> at_first) {
  std::vector<std::unique_ptr<Worker>> added;
  MutexLock lock = enter();
  DeviceGroup* const known = runners.empty() ? nullptr : find_group(runners.front()->device());
  if (known != nullptr && known->give_back_runners(runners)) {
    return;
  }
  check_open();
  added.reserve(runners.size());
  workers_.reserve(workers_.size() + runners.size());
  try {
    for (const auto& runner : runners) {
      DeviceGroup& group = group_of(runner->device());
      if (group.removed()) {
        throw Error(ErrorKind::device, to_string(group.device) + " was removed from the pool");
      }
      group.workers.reserve(group.workers.size() + runners.size());
      Worker& worker = *added.emplace_back(std::make_unique<Worker>());
      worker.runner = runner;
      worker.session = runner->session();
      worker.group = &group;
      worker.state = Worker::State::unstarted;
      if (!at_first || added.size() <= *at_first) {
        start(worker);
      }
    }
  } catch (...) {
    for (const auto& worker : added) {
      worker->state = Worker::State::ending;
    }
    lock.unlock();
    added.clear();  // joins their threads
    try {
      throw;
    } catch (const std::system_error& error) {
      throw Error(ErrorKind::fail, std::string("cannot start a worker thread of the pool: ") + error.what());
    }
  }
  for (auto& each : added) {
    Worker& worker = *each;
    workers_.push_back(std::move(each));
    worker.group->add(worker, at_first, options_.cores);
    has_gpus_ = has_gpus_ || worker.group->device.is_cuda();
    if (worker.idle()) {
      worker.group->occupy(worker, Worker::State::running);
      hand_over(worker);
    }
  }
}

bool Pool::closed() const {
  if (generation_ != fork_generation()) {
    return false;
  }
  const MutexLock lock(mutex_);
  return closing_;
}

bool Pool::close(bool cancel_waiting, std::optional<std::chrono::milliseconds> patience) {
  if (generation_ != fork_generation()) {
    return true;
  }
  {
    Requests finished;
    std::vector<std::shared_ptr<DeviceSleep>> given_up;  // freed without the lock
    MutexLock lock(mutex_);
    if (freed_) {
      return true;
    }
    closing_ = true;
    opening_ = false;
    queue_has_space_.notify_all();
    for (const auto& worker : workers_) {
      worker->wake.notify_one();  // it may wait for a batch to grow
    }
    if (cancel_waiting) {
      const auto error = make_error(ErrorKind::closed, "the pool was closed before the request began");
      for (const auto& group : groups_) {
        fail_all(group->waiting, error, finished, Request::Outcome::cancelled);
      }
      fail_all(waiting_.for_any(), error, finished, Request::Outcome::cancelled);
    }
    const std::string reason = "the pool was closed before it had a session";
    for (const auto& group : groups_) {
      group->none_is_coming(reason);
      group->ask_awake(false);
      given_up.push_back(stop_falling(*group));
    }
    const auto error = make_error(ErrorKind::closed, reason);
    for (const auto& group : groups_) {
      if (!group->usable()) {
        fail_waiting(*group, error, finished);
      }
    }
    if (!any_usable()) {
      fail_all(waiting_.for_any(), error, finished);
    }
    settled_.notify_all();  // another thread may close it too, and wait for what was cancelled
    lock.unlock();
    announce(finished);
  }
  MutexLock lock(mutex_);
  const auto is_settled = [this]() ORTMULTI_REQUIRES(mutex_) { return settled(); };
  if (!patience) {
    settled_.wait(mutex_, is_settled);
  } else if (!settled_.wait_until(mutex_, Clock::now() + *patience, is_settled)) {
    return false;
  }
  if (freeing_) {  // from here on nothing takes long
    settled_.wait(mutex_, [this]() ORTMULTI_REQUIRES(mutex_) { return freed_; });
    return true;
  }
  std::vector<Worker*> ending;
  ending.reserve(workers_.size());
  std::vector<std::shared_ptr<void>> freed;  // without the lock
  freed.reserve(workers_.size() + groups_.size());
  freeing_ = true;
  deadlines_.stop();
  for (const auto& worker : workers_) {
    worker->state = Worker::State::ending;
    worker->wake.notify_one();
    ending.push_back(worker.get());
  }
  std::thread timer = std::move(timer_);
  lock.unlock();
  for (Worker* const worker : ending) {
    for (std::jthread* const thread : {&worker->thread, &worker->before}) {
      if (thread->joinable()) {
        thread->join();
      }
    }
  }
  if (timer.joinable()) {
    timer.join();
  }
  lock.lock();
  for (const auto& worker : workers_) {
    freed.push_back(std::move(worker->runner));
  }
  for (const auto& group : groups_) {
    freed.push_back(group->end_sleep());
  }
  lock.unlock();
  freed.clear();
  lock.lock();
  freed_ = true;
  settled_.notify_all();
  return true;
}

}  // namespace ortmulti
