#include "core/pool/pool.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "core/process_fork.hpp"

namespace ortmulti {

// The sessions of one device.
struct Pool::Group {
  Device device;
  Queue waiting;  // for this device alone
  std::vector<Worker*> workers;
  std::size_t busy = 0;
  std::string broken;
  std::uint64_t done = 0;
  std::uint64_t failed = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t retried = 0;
  std::uint64_t runs = 0;
  LatencyHistogram queue;
  LatencyHistogram run;
  LatencyHistogram whole;
};

struct Pool::Worker {
  Group* group = nullptr;
  std::shared_ptr<Runner> runner;
  bool busy = false;
  bool stopping = false;
  bool forming = false;       // its batch may grow
  Requests batch;             // what it has to run
  std::size_t batched = 0;    // the size of that
  Request* in_run = nullptr;  // what the runner has
  std::string why_broken;     // since the last run
  std::condition_variable wake;
  std::thread thread;
};

namespace {

std::exception_ptr make_error(ErrorKind kind, const std::string& message) {
  return std::make_exception_ptr(Error(kind, message));
}

std::string milliseconds(Request::Clock::duration duration) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count()) + " ms";
}

}  // namespace

std::shared_ptr<Pool> Pool::make(const Options& options) {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory)
  return std::shared_ptr<Pool>(new Pool(options), [](Pool* pool) {
    if (pool->generation_ == fork_generation()) {  // else its threads, and who holds its locks, are the parent's
      delete pool;                                 // NOLINT(cppcoreguidelines-owning-memory)
    }
  });
}

Pool::Pool(Options options) : options_(std::move(options)), generation_(fork_generation()) {}

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

// --- Queue
// ------------------------------------------------------------------------------------------------------------

Pool::Worker* Pool::idle_worker(const Request& request) {
  Group* best = nullptr;
  std::size_t best_index = 0;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const std::size_t index = (next_group_ + i) % groups_.size();
    Group& group = *groups_[index];
    if (!group.broken.empty() || group.busy == group.workers.size() ||
        (request.device && *request.device != group.device)) {
      continue;
    }
    if (best == nullptr || group.busy * best->workers.size() < best->busy * group.workers.size()) {
      best = &group;
      best_index = index;
    }
  }
  if (best == nullptr) {
    return nullptr;
  }
  next_group_ = best_index + 1;
  return *std::find_if(best->workers.begin(), best->workers.end(), [](const Worker* worker) { return !worker->busy; });
}

bool Pool::full() const { return options_.max_waiting && waiting_ >= *options_.max_waiting; }

bool Pool::any_usable() const {
  return std::any_of(groups_.begin(), groups_.end(), [](const auto& group) { return group->broken.empty(); });
}

bool Pool::settled() const {
  return waiting_ == 0 &&
         std::none_of(groups_.begin(), groups_.end(), [](const auto& group) { return group->busy != 0; });
}

void Pool::assign(Worker& worker, const std::shared_ptr<Request>& request) {
  request->place_ = Request::Place::running;
  request->worker_ = &worker;
  worker.batch.push_back(request);
}

void Pool::give(Worker& worker, const std::shared_ptr<Request>& request) {
  if (!worker.busy) {
    worker.busy = true;
    ++worker.group->busy;
  }
  assign(worker, request);
  worker.batched = request->batch_size_;
  worker.wake.notify_one();
}

Pool::Queue& Pool::queue_of(const Request& request) {
  if (request.device) {
    for (const auto& group : groups_) {
      if (group->device == *request.device) {
        return group->waiting;
      }
    }
  }
  return anywhere_;
}

void Pool::enqueue(const std::shared_ptr<Request>& request) {
  Queue& queue = queue_of(*request);
  // What is retried was asked for before the others.
  request->position_ = queue.insert(request->retried_ ? queue.begin() : queue.end(), request);
  if (!request->retried_) {
    request->number_ = ++next_number_;
  }
  request->place_ = Request::Place::waiting;
  ++waiting_;
}

std::shared_ptr<Request> Pool::unqueue(Request& request) {
  std::shared_ptr<Request> taken = std::move(*request.position_);
  queue_of(request).erase(request.position_);
  --waiting_;
  request.place_ = Request::Place::nowhere;
  room_.notify_one();
  return taken;
}

std::shared_ptr<Request> Pool::take_back(Request& request) {
  if (request.place_ == Request::Place::waiting) {
    return unqueue(request);
  }
  if (request.place_ == Request::Place::running && static_cast<Worker*>(request.worker_)->forming) {
    Worker& worker = *static_cast<Worker*>(request.worker_);
    const auto member = std::find_if(worker.batch.begin(), worker.batch.end(),
                                     [&request](const auto& other) { return other.get() == &request; });
    auto taken = std::move(*member);
    worker.batch.erase(member);
    worker.batched -= request.batch_size_;
    worker.wake.notify_one();
    return taken;
  }
  return nullptr;
}

std::shared_ptr<Request> Pool::next_for(Group& group) {
  if (anywhere_.empty() && group.waiting.empty()) {
    return nullptr;
  }
  const bool own =
      anywhere_.empty() || (!group.waiting.empty() && group.waiting.front()->number_ < anywhere_.front()->number_);
  return unqueue(own ? *group.waiting.front() : *anywhere_.front());
}

void Pool::hand_over(Worker& worker) {
  if (worker.group->broken.empty()) {
    if (const auto next = next_for(*worker.group)) {
      give(worker, next);
      return;
    }
  }
  worker.busy = false;
  --worker.group->busy;
  if (closing_ && settled()) {
    settled_.notify_all();
  }
}

bool Pool::run_here(Request& request) {
  check_process();
  if (options_.batching.enabled() || request.deadline) {
    return false;
  }
  request.asked = Clock::now();
  Lock lock(mutex_);
  check_accepted(request);
  Worker* worker = idle_worker(request);
  if (worker == nullptr) {
    return false;
  }
  worker->busy = true;
  ++worker->group->busy;
  std::exception_ptr error = run_one(*worker, request, lock);
  Requests finished;
  const bool ended = end_run(*worker, request, std::move(error), finished);
  hand_over(*worker);
  lock.unlock();
  announce(finished);
  return ended;
}

bool Pool::submit(const std::shared_ptr<Request>& request, const std::optional<Clock::time_point>& wait_until) {
  check_process();
  request->asked = Clock::now();
  if (options_.batching.enabled() && (request->run_options == nullptr || request->own_run_options)) {
    request->batch_size_ = batch_size(*request, options_.batching.axis);
    request->batch_key_ = batch_key(*request, options_.batching.axis);
  }
  Lock lock(mutex_);
  check_accepted(*request);
  start_timer(*request);
  Worker* idle = nullptr;
  bool joined = false;
  for (;;) {
    if (request->deadline && *request->deadline <= Clock::now()) {
      throw Error(ErrorKind::deadline, "the request's deadline passed before there was room for it");
    }
    joined = join_forming(request);
    idle = joined ? nullptr : idle_worker(*request);
    if (joined || idle != nullptr || !wait_until || !full()) {
      break;
    }
    if (room_.wait_until(lock, *wait_until) == std::cv_status::timeout && full()) {
      return false;
    }
    check_accepted(*request);
  }
  add_timer(request);
  if (idle != nullptr) {
    give(*idle, request);
  } else if (!joined) {
    enqueue(request);
  }
  if (!full()) {
    room_.notify_one();  // what woke this thread may have been for another one too
  }
  return true;
}

void Pool::count_rejected() {
  const Lock lock(mutex_);
  ++rejected_;
}

bool Pool::cancel(const std::shared_ptr<Request>& request) {
  check_process();
  Lock lock(mutex_);
  if (const auto taken = take_back(*request)) {
    ++cancelled_waiting_;
    finish(*taken, Request::Outcome::cancelled, make_error(ErrorKind::cancelled, "the request was cancelled"));
    if (closing_ && settled()) {
      settled_.notify_all();
    }
    lock.unlock();
    Requests finished{taken};
    announce(finished);
    return true;
  }
  if (request->place_ != Request::Place::running) {
    return false;
  }
  request->unwanted_ = true;
  end_early(*request);
  return true;
}

// --- Runs
// -------------------------------------------------------------------------------------------------------------

void Pool::work(Worker& worker) {
  Lock lock(mutex_);
  for (;;) {
    worker.wake.wait(lock, [&worker] { return !worker.batch.empty() || worker.stopping; });
    if (worker.batch.empty()) {
      return;
    }
    run_batch(worker, lock);
    hand_over(worker);
  }
}

bool Pool::join_forming(const std::shared_ptr<Request>& request) {
  if (request->batch_key_.empty()) {
    return false;
  }
  for (const auto& worker : workers_) {
    if (worker->forming && !worker->batch.empty() && worker->batch.front()->batch_key_ == request->batch_key_ &&
        worker->batched + request->batch_size_ <= options_.batching.max_size &&
        (!request->device || *request->device == worker->group->device)) {
      assign(*worker, request);
      worker->batched += request->batch_size_;
      if (worker->batched == options_.batching.max_size) {
        worker->wake.notify_one();
      }
      return true;
    }
  }
  return false;
}

void Pool::gather(Worker& worker, Lock& lock) {
  const std::size_t most = options_.batching.max_size;
  const std::shared_ptr<Request> first = worker.batch.front();
  if (first->batch_key_.empty() || worker.batched >= most || first->unwanted_ || first->expired_) {
    return;
  }
  for (Queue* queue : {&worker.group->waiting, &anywhere_}) {
    std::size_t looked_at = 0;  // requests of other shapes could be many
    for (auto next = queue->begin(); next != queue->end() && worker.batched < most && looked_at < 4 * most;
         ++looked_at) {
      Request& request = **next++;
      if (request.batch_key_ == first->batch_key_ && worker.batched + request.batch_size_ <= most) {
        worker.batched += request.batch_size_;
        assign(worker, unqueue(request));
      }
    }
  }
  if (worker.batched < most && options_.batching.max_delay.count() > 0 && !closing_) {
    worker.forming = true;
    worker.wake.wait_until(lock, first->asked + options_.batching.max_delay,
                           [&] { return worker.batched >= most || worker.batch.empty() || closing_; });
    worker.forming = false;
  }
}

void Pool::run_batch(Worker& worker, Lock& lock) {
  if (options_.batching.enabled()) {
    gather(worker, lock);
  }
  const Requests all = std::move(worker.batch);
  worker.batch.clear();
  Requests finished;
  Requests batch;
  for (const auto& request : all) {
    if (request->unwanted_ || request->expired_) {
      request->started = Clock::now();
      conclude(worker, request, nullptr, finished);
    } else {
      batch.push_back(request);
    }
  }
  worker.batch = batch;
  if (batch.size() == 1) {
    std::exception_ptr error = run_one(worker, *batch.front(), lock);
    conclude(worker, batch.front(), std::move(error), finished);
  } else if (!batch.empty()) {
    const std::exception_ptr joint_error = run_joint(worker, batch, lock);
    for (const auto& request : batch) {
      std::exception_ptr error = joint_error;
      if (error && !request->unwanted_ && !request->expired_ && worker.group->broken.empty()) {
        worker.batch = {request};  // which of them made the batch fail is found by running each alone
        error = run_one(worker, *request, lock);
      }
      conclude(worker, request, std::move(error), finished);
    }
  }
  worker.batch.clear();
  lock.unlock();
  announce(finished);
  lock.lock();
}

std::exception_ptr Pool::run_one(Worker& worker, Request& request, Lock& lock) {
  worker.in_run = &request;
  ++worker.group->runs;
  lock.unlock();
  std::exception_ptr error;
  std::string why_broken;
  request.started = Clock::now();
  try {
    worker.runner->run(request);
  } catch (...) {
    error = std::current_exception();
    request.outputs.clear();
  }
  request.ended = Clock::now();
  if (error) {
    why_broken = worker.runner->why_broken();
  }
  lock.lock();
  worker.in_run = nullptr;
  worker.why_broken = std::move(why_broken);
  return error;
}

std::exception_ptr Pool::run_joint(Worker& worker, const Requests& batch, Lock& lock) {
  lock.unlock();
  std::exception_ptr error;
  std::shared_ptr<Request> joint;
  const Clock::time_point started = Clock::now();
  try {
    joint = join(batch, options_.batching.axis);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  if (joint) {
    error = run_one(worker, *joint, lock);
  }
  lock.unlock();
  if (!error) {
    try {
      split(*joint, batch, options_.batching.axis);
    } catch (...) {
      error = std::current_exception();
    }
  }
  joint.reset();
  const Clock::time_point ended = Clock::now();
  for (const auto& request : batch) {
    request->started = started;
    request->ended = ended;
  }
  lock.lock();
  return error;
}

void Pool::conclude(Worker& worker, const std::shared_ptr<Request>& request, std::exception_ptr error,
                    Requests& finished) {
  if (end_run(worker, *request, std::move(error), finished)) {
    finished.push_back(request);
  } else if (Worker* idle = idle_worker(*request)) {
    give(*idle, request);
  } else {
    enqueue(request);
  }
}

bool Pool::end_run(Worker& worker, Request& request, std::exception_ptr error, Requests& finished) {
  Group& group = *worker.group;
  request.ran_on = group.device;
  if (error && group.broken.empty()) {
    if (!worker.why_broken.empty()) {
      take_out(group, worker.why_broken, finished);
    }
  } else if (error && any_usable() && !request.retried_ && !request.device && !request.unwanted_ && !request.expired_) {
    // The device broke under another request's run.
    ++group.retried;
    request.retried_ = true;
    return false;
  }
  if (request.unwanted_) {
    ++group.cancelled;
    finish(request, Request::Outcome::cancelled, make_error(ErrorKind::cancelled, "the request was cancelled"));
  } else if (request.expired_ && request.outputs.empty()) {
    ++group.failed;
    finish(request, Request::Outcome::failed,
           make_error(ErrorKind::deadline,
                      "the request was not answered within " + milliseconds(*request.deadline - request.asked)));
  } else if (error) {
    ++group.failed;
    finish(request, Request::Outcome::failed, std::move(error));
  } else {
    ++group.done;
    finish(request, Request::Outcome::done);
  }
  group.queue.record((request.started - request.asked).count());
  group.run.record((request.ended - request.started).count());
  group.whole.record((request.ended - request.asked).count());
  return true;
}

void Pool::end_early(Request& request) {
  Worker& worker = *static_cast<Worker*>(request.worker_);
  const bool nobody_waits = std::all_of(worker.batch.begin(), worker.batch.end(),
                                        [](const auto& other) { return other->unwanted_ || other->expired_; });
  if (worker.in_run != nullptr && nobody_waits) {
    worker.runner->terminate(*worker.in_run);
  }
}

void Pool::take_out(Group& group, const std::string& reason, Requests& finished) {
  group.broken = reason;
  const bool left = any_usable();
  for (Queue* queue : {&group.waiting, &anywhere_}) {
    while (!queue->empty() && (queue == &group.waiting || !left)) {
      const auto request = unqueue(*queue->front());
      ++failed_waiting_;
      finish(*request, Request::Outcome::failed,
             make_error(ErrorKind::device, to_string(group.device) + " was taken out of the pool: " + reason));
      finished.push_back(request);
    }
  }
}

void Pool::finish(Request& request, Request::Outcome outcome, std::exception_ptr error) {
  if (request.timer_) {
    timers_.erase(*request.timer_);
    request.timer_.reset();
  }
  if (request.ended < request.asked) {  // it never ran
    request.ended = Clock::now();
  }
  request.place_ = Request::Place::finished;
  request.worker_ = nullptr;
  request.outcome = outcome;
  request.error = std::move(error);
  if (outcome != Request::Outcome::done) {
    request.outputs.clear();
  }
}

void Pool::announce(Requests& finished) {
  for (auto& request : finished) {
    // Out of the request first, which it may refer to.
    if (const auto call = std::move(request->finished)) {
      call(std::move(request));
    }
  }
  finished.clear();
}

// --- Deadlines
// --------------------------------------------------------------------------------------------------------

void Pool::start_timer(const Request& request) {
  if (!request.deadline || timer_.joinable()) {
    return;
  }
  try {
    timer_ = std::thread(&Pool::keep_deadlines, this);
  } catch (const std::system_error& error) {
    throw Error(ErrorKind::fail, std::string("the system gives no further thread for deadlines: ") + error.what());
  }
}

void Pool::add_timer(const std::shared_ptr<Request>& request) {
  if (!request->deadline) {
    return;
  }
  request->timer_ = timers_.emplace(*request->deadline, request);
  if (*request->timer_ == timers_.begin()) {
    timers_changed_.notify_one();
  }
}

void Pool::keep_deadlines() {
  Lock lock(mutex_);
  Requests finished;
  while (!timer_stops_) {
    if (timers_.empty()) {
      timers_changed_.wait(lock);
      continue;
    }
    const Clock::time_point first = timers_.begin()->first;
    if (first > Clock::now()) {
      timers_changed_.wait_until(lock, first);
      continue;
    }
    const auto request = timers_.begin()->second.lock();
    timers_.erase(timers_.begin());
    request->timer_.reset();
    const auto taken = take_back(*request);
    if (!taken) {
      request->expired_ = true;
      end_early(*request);
      continue;
    }
    finished.push_back(taken);
    ++failed_waiting_;
    finish(*request, Request::Outcome::failed,
           make_error(ErrorKind::deadline, "the request still waited for a session after " +
                                               milliseconds(*request->deadline - request->asked)));
    if (closing_ && settled()) {
      settled_.notify_all();
    }
    lock.unlock();
    announce(finished);
    lock.lock();
  }
}

// --- The whole
// --------------------------------------------------------------------------------------------------------

PoolStats Pool::stats() {
  check_process();
  const Lock lock(mutex_);
  PoolStats stats;
  stats.waiting = anywhere_.size();
  stats.rejected = rejected_;
  stats.cancelled_waiting = cancelled_waiting_;
  stats.failed_waiting = failed_waiting_;
  for (const auto& group : groups_) {
    DeviceStats device;
    device.device = group->device;
    device.sessions = group->workers.size();
    device.busy = group->busy;
    device.waiting = group->waiting.size();
    device.done = group->done;
    device.failed = group->failed;
    device.cancelled = group->cancelled;
    device.retried = group->retried;
    device.runs = group->runs;
    device.broken = group->broken;
    device.queue = group->queue;
    device.run = group->run;
    device.whole = group->whole;
    stats.devices.push_back(std::move(device));
  }
  return stats;
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
