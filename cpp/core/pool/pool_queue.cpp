#include <algorithm>
#include <cmath>
#include <limits>
#include <ratio>
#include <system_error>
#include <utility>

#include "core/ort/library.hpp"
#include "core/policy/numbers.hpp"
#include "core/pool/device_group.hpp"
#include "core/pool/gpu_session.hpp"
#include "core/pool/pool.hpp"

namespace ortmulti {
namespace {}  // namespace

// Whoever waits for room submits a request several times.
void Pool::note_submitted(Request& request) {
  if (request.submitted == Clock::time_point()) {
    request.submitted = Clock::now();
    request.due_ = request.deadline.value_or(request.submitted + Request::without_deadline);
  }
}

Worker* Pool::idle_worker(const Request& request) {
  Worker* best = nullptr;
  std::size_t best_index = 0;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const std::size_t index = (next_group_ + i) % groups_.size();
    DeviceGroup& group = *groups_[index];
    if (!group.usable() || group.occupied() || !group.is_for(request) || !group.has_place_for(request, group.busy())) {
      continue;
    }
    Worker* const idle = group.idle_worker();
    if (idle == nullptr) {
      continue;
    }
    const bool probe = probe_due(group, request);
    if (!probe && !group.takes(request)) {
      continue;
    }
    if (probe || best == nullptr ||
        group.busy() * best->group->workers.size() < best->group->busy() * group.workers.size()) {
      best = idle;
      best_index = index;
    }
    if (probe) {
      break;
    }
  }
  if (best != nullptr) {
    next_group_ = best_index + 1;
  }
  return best;
}

bool Pool::full() const { return options_.max_waiting && waiting_ >= *options_.max_waiting; }

bool Pool::any_usable() const {
  return std::ranges::any_of(groups_, [](const auto& group) { return group->usable(); });
}

bool Pool::settled() const {
  return waiting_ == 0 && std::ranges::none_of(groups_, [](const auto& group) { return group->active(); });
}

void Pool::assign(Worker& worker, const std::shared_ptr<Request>& request) const {
  worker.batch.push_back(request);
  request->phase_ = Request::Phase::running;
  request->worker_ = &worker;
  if (options_.batching.enabled()) {
    request->assigned = Clock::now();
  }
}

bool Pool::probe_due(const DeviceGroup& group, const Request& request) const {
  return group.suspended() && group.probe_due(request, options_.now());
}

void Pool::note_probe(const Worker& worker, const Request& request) const {
  if (worker.probing && !request.device) {
    worker.group->probes(options_.now());
  }
}

void Pool::give(Worker& worker, const std::shared_ptr<Request>& request) {
  assign(worker, request);
  worker.size = request->size_;
  // From now on, not from when its thread wakes up: others would begin batches too. A probe is one request.
  worker.most = worker.group->most_rows(*request, options_.batching);
  const bool forming = options_.batching.enabled() && !options_.batching.is_full(worker.size) &&
                       worker.size.rows < worker.most && joins_others(*request) && !worker.group->suspended();
  worker.group->occupy(worker, forming ? Worker::State::forming : Worker::State::given);
  note_probe(worker, *request);
  worker.enough = worker.most;
  const bool wakes_in_time =
      worker.wakes != Clock::time_point() && worker.wakes <= request->submitted + options_.batching.max_delay;
  if (!forming || !wakes_in_time) {
    worker.wake.notify_one();
  }
}

void Pool::place(const std::shared_ptr<Request>& request) {
  if (join_forming(request)) {
    return;
  }
  if (Worker* idle = idle_worker(*request)) {
    give(*idle, request);
  } else {
    enqueue(request);
  }
}

RequestQueue& Pool::queue_of(const Request& request) {
  return request.device ? group_of(*request.device).waiting : anywhere_;
}

void Pool::enqueue(const std::shared_ptr<Request>& request) {
  RequestQueue& queue = queue_of(*request);
  request->number_ = request->number_ == 0 ? ++next_number_ : request->number_;
  request->position_ = queue.insert(queue.end(), request);  // where most belong
  request->phase_ = Request::Phase::waiting;
  ++waiting_;
  prioritized_ += request->priority != 0 ? 1 : 0;
  wake_for(*request);
}

std::shared_ptr<Request> Pool::unqueue(Request& request) {
  std::shared_ptr<Request> taken = std::move(queue_of(request).extract(request.position_).value());
  --waiting_;
  prioritized_ -= request.priority != 0 ? 1 : 0;
  request.phase_ = Request::Phase::unqueued;
  queue_has_space_.notify_one();
  return taken;
}

std::shared_ptr<Request> Pool::take_back(Request& request) {
  if (request.phase_ == Request::Phase::waiting) {
    return unqueue(request);
  }
  if (request.phase_ == Request::Phase::running &&
      static_cast<Worker*>(request.worker_)->state == Worker::State::forming) {
    Worker& worker = *static_cast<Worker*>(request.worker_);
    const auto member = std::ranges::find(worker.batch, &request, &std::shared_ptr<Request>::get);
    auto taken = std::move(*member);
    worker.batch.erase(member);
    worker.size = {};
    for (const auto& other : worker.batch) {
      worker.size.add(other->size_);
    }
    worker.wake.notify_one();
    return taken;
  }
  return nullptr;
}

Request* Pool::turn_of_lower(DeviceGroup& group) {
  if (prioritized_ == 0) {
    return nullptr;
  }
  const auto first_below = [&](std::int64_t priority) ORTMULTI_REQUIRES(mutex_) {
    Request* first = nullptr;
    for (const RequestQueue* const queue : {&group.waiting, &anywhere_}) {
      const auto found = queue->lower_bound(LowerPriority{priority});
      if (found != queue->end() && (first == nullptr || (*found)->goes_before(*first))) {
        first = found->get();
      }
    }
    return first;
  };
  const Request* const highest = first_below(std::numeric_limits<std::int64_t>::max());
  Request* const lower = highest == nullptr ? nullptr : first_below(highest->priority);
  if (lower == nullptr || ++since_lower_ < *numbers::queue_lower_every) {
    return nullptr;
  }
  since_lower_ = 0;
  Request* const next = first_below(std::min(last_lower_, highest->priority));
  Request* const turn = next == nullptr ? lower : next;
  last_lower_ = turn->priority;
  return group.takes(*turn) ? turn : nullptr;
}

std::shared_ptr<Request> Pool::next_for(DeviceGroup& group, std::size_t others) {
  if (Request* const lower = turn_of_lower(group)) {
    return unqueue(*lower);
  }
  Request* next = nullptr;
  Request* late = nullptr;  // for nothing: requests after it might become late because of it
  std::size_t max_late = 1000;
  group.each_waiting(anywhere_, [&](Request& request) ORTMULTI_REQUIRES(mutex_) {
    const bool has_place = group.has_place_for(request, others);
    const bool takes = has_place && (group.takes(request) || probe_due(group, request));
    if (!takes && request.retried_) {
      return true;  // these come first, and are few
    }
    if (!has_place) {
      return false;  // nor for those of lower priorities
    }
    if (takes && group.would_be_late(request)) {
      late = late == nullptr ? &request : late;
      return --max_late > 0;
    }
    // A group takes every request for its own device. It takes requests for any device in order only: if it may not
    // take the first one, it takes none.
    next = takes ? &request : group.waiting.empty() ? nullptr : group.waiting.begin()->get();
    return false;
  });
  next = next == nullptr ? late : next;
  return next == nullptr ? nullptr : unqueue(*next);
}

void Pool::note_stop(const std::string& why, OrtLoggingLevel level) {
  counts_.why_unbatched = why;
  if (counts_.unbatched++ == 0 || level == ORT_LOGGING_LEVEL_ERROR) {
    const std::string& model = joining_.outputs().model;
    onnxruntime_log().push({level, "ortmulti", "", "",
                            (model.empty() ? "" : model + ": ") +
                                "requests that a pool joined are run one at a time from now on: " + why});
  }
}

void Pool::hand_over(Worker& worker) {
  if (!anywhere_.empty()) {
    for (const auto& group : groups_) {
      if (group->suspended()) {
        give_waiting(*group);
      }
    }
  }
  if (worker.group->usable() && !worker.group->occupied(1)) {  // the one is this worker
    if (const auto next = next_for(*worker.group, worker.group->busy() - 1)) {
      give(worker, next);
      return;
    }
  }
  worker.group->release(worker);
  if (options_.max_waiting) {
    queue_has_space_.notify_all();  // a waiter may want this device
  }
  if (worker.group->removed() || worker.group->sleep_state() == DeviceGroup::SleepState::falling_asleep ||
      (closing_ && settled())) {
    settled_.notify_all();
  }
}

void Pool::refresh() {
  if (std::ranges::none_of(groups_, [](const auto& group) { return group->dispatches(); })) {
    for (const auto& group : groups_) {
      group->end_suspension();
    }
  }
  for (const auto& group : groups_) {
    give_waiting(*group);
  }
}

void Pool::give_waiting(DeviceGroup& group) {
  if (!group.usable()) {
    return;
  }
  for (Worker* worker : group.workers) {
    if (!worker->idle()) {
      continue;
    }
    if (group.occupied()) {
      return;
    }
    const auto next = next_for(group, group.busy());
    if (!next) {
      return;
    }
    give(*worker, next);
  }
}

void Pool::prefer_device_of_inputs(Request& request) const {
  if (!has_gpus_ || request.device) {
    return;
  }
  const std::optional<Device> there = device_of_inputs(request);
  const MutexLock lock(mutex_);
  const DeviceGroup* const group = there ? find_group(*there) : nullptr;
  if (group != nullptr && group->usable() && !group->suspended()) {
    request.device = there;
  }
}

bool Pool::run_here(Request& request, bool interruptible) {
  check_process();
  const Batching& batching = options_.batching;
  const bool may_join_others = batching.enabled();
  if (request.deadline || (may_join_others && (batching.max_delay.count() > 0 || !batching.leaves_all()))) {
    return false;
  }
  note_submitted(request);
  prefer_device_of_inputs(request);
  MutexLock lock(mutex_);
  check_accepted(request);
  const std::size_t turn = next_group_;
  Worker* worker = idle_worker(request);
  if (worker == nullptr || worker->group->gate) {
    return false;
  }
  const RecentAverage& run_time = worker->group->run_time;
  // While nobody waits there is nobody to join; those who come meanwhile join each other.
  const bool too_long =
      may_join_others && (worker->group->device != Device::cpu() || !worker->group->knows_run_time() ||
                          run_time.value() >= *numbers::batch_wait_shortest);
  if (too_long ||
      (interruptible && (run_time.count() == 0 || run_time.value() >= *numbers::queue_longest_uninterrupted))) {
    next_group_ = turn;  // the device's, which submit() is to choose
    return false;
  }
  if (worker->group->device.is_cuda()) {
    // The CUDA provider keeps handles for each thread that runs a session: 72 MiB on an H200.
    std::thread::id& caller = worker->group->caller;
    caller = caller == std::thread::id() ? std::this_thread::get_id() : caller;
    if (caller != std::this_thread::get_id()) {
      return false;
    }
  }
  worker->group->occupy(*worker, Worker::State::running);
  note_probe(*worker, request);
  Requests finished;
  const bool ended = end_run(*worker, request, run_one(*worker, request), finished);
  adapt(*worker, request.outcome == Request::Outcome::done ? 1 : 0);
  hand_over(*worker);
  lock.unlock();
  announce(finished);
  return ended;
}

bool Pool::submit(const std::shared_ptr<Request>& request, const std::optional<Clock::time_point>& wait_until) {
  check_process();
  note_submitted(*request);
  prefer_device_of_inputs(*request);
  if (options_.batching.enabled() && (request->run_options == nullptr || request->own_run_options)) {
    auto traits = batch_traits(*request, options_.batching);
    request->size_ = traits.size;
    request->batch_key_ = std::move(traits.key);
    if (request->priority < 0 && !request->batch_key_.empty()) {
      request->batch_key_ += " in the background";  // which makes no other run longer
    }
  }
  Timers timer;  // made first: where memory ends nothing has been done yet
  Requests finished;
  if (options_.max_waiting) {
    finished.reserve(1);
  }
  if (request->deadline) {
    timer.emplace(*request->deadline, request);
  }
  MutexLock lock(mutex_);
  check_accepted(*request);
  if (!request->batch_key_.empty()) {
    const std::string* const why = joining_.why_apart(request->output_names, request->inputs.names());
    if (why != nullptr) {
      request->batch_key_.clear();
      counts_.why_unbatched = *why;
    }
    counts_.apart += why != nullptr || !joins_others(*request) ? 1 : 0;
  }
  start_timer(*request);
  Worker* idle = nullptr;
  bool joined = false;
  for (;;) {
    if (request->deadline && *request->deadline <= Clock::now()) {
      ++counts_.rejected;
      queue_has_space_.notify_one();  // there may be room all the same, and another thread that waits for it
      std::rethrow_exception(deadline_error(*request, "the request could not begin within "));
    }
    joined = join_forming(request);
    idle = joined ? nullptr : idle_worker(*request);
    // An idle session tries it: else one slow run could have all others refused for ever.
    if (const std::exception_ptr late = joined || idle != nullptr ? nullptr : why_late(*request)) {
      ++counts_.rejected;
      queue_has_space_.notify_one();  // as above
      std::rethrow_exception(late);
    }
    if (joined || idle != nullptr || !wait_until || !full() || make_room_for(*request, finished)) {
      break;
    }
    const Clock::time_point until = std::min(*wait_until, request->deadline.value_or(*wait_until));
    if (!queue_has_space_.wait_until(mutex_, until) && full() && until == *wait_until) {
      return false;
    }
    check_accepted(*request);
  }
  if (idle != nullptr) {
    give(*idle, request);
  } else if (!joined) {
    enqueue(request);
  }
  if (!timer.empty()) {
    const auto added = timers_.insert(timer.extract(timer.begin()));
    request->timer_ = added;
    if (added->first < timer_wakes_) {
      timers_changed_.notify_one();
    }
  }
  if (!full()) {
    queue_has_space_.notify_one();  // what woke this thread may have been for another one too
  }
  lock.unlock();
  announce(finished);
  return true;
}

std::exception_ptr Pool::why_late(const Request& request) const {
  if (!options_.reject_late || !request.deadline) {
    return nullptr;
  }
  constexpr std::size_t max_passed = 1000;
  double at_once = 0;  // requests, of joint runs all
  double run = 0;
  std::size_t ahead = 0;
  std::size_t passed = 0;
  const auto count = [&](const RequestQueue& queue) {
    auto position = queue.rbegin();
    while (position != queue.rend() && passed < max_passed && request.goes_before(**position)) {
      ++position;
      ++passed;
    }
    ahead += queue.size();
  };
  count(anywhere_);
  for (const auto& group : groups_) {
    if (!group->dispatches() || !group->is_for(request)) {
      continue;
    }
    if (!group->knows_run_time()) {
      return nullptr;
    }
    count(group->waiting);
    const SizeHistogram& sizes = group->counts.batch_size;
    at_once += static_cast<double>(group->at_once() * sizes.sum()) / static_cast<double>(sizes.count());
    run = std::max(run, std::chrono::duration<double, std::milli>(group->run_time.value()).count());
  }
  ahead -= passed;
  const double left = std::chrono::duration<double, std::milli>(*request.deadline - Clock::now()).count();
  if (at_once == 0 || passed >= max_passed || run * (1 + static_cast<double>(ahead) / at_once) <= left) {
    return nullptr;
  }
  const std::string before = ahead == 1 ? "1 request waits" : std::to_string(ahead) + " requests wait";
  return make_error(ErrorKind::deadline, "the request would not be answered within the " +
                                             std::to_string(std::lround(left)) +
                                             " ms that are left: " + (ahead == 0 ? "" : before + " before it, and ") +
                                             "a run takes " + std::to_string(std::lround(run)) +
                                             " ms: give a longer timeout, or send fewer requests at once");
}

bool Pool::make_room_for(const Request& request, Requests& finished) {
  Request* last = anywhere_.empty() ? nullptr : anywhere_.rbegin()->get();
  for (const auto& group : groups_) {
    if (!group->waiting.empty() && (last == nullptr || last->goes_before(**group->waiting.rbegin()))) {
      last = group->waiting.rbegin()->get();
    }
  }
  if (last == nullptr || last->retried_ || last->priority >= request.priority) {
    return false;
  }
  finished.push_back(unqueue(*last));
  ++counts_.failed_waiting;
  finish(*last, Request::Outcome::failed,
         make_error(ErrorKind::queue_full,
                    "the pool's queue is full, and a request of priority " + std::to_string(request.priority) +
                        " took the place of this one, of priority " + std::to_string(last->priority) +
                        ": send fewer at once, or raise max_queue"));
  return true;
}

void Pool::set_padding(std::shared_ptr<const Padding> padding) {
  const MutexLock lock = enter();
  options_.batching.padding = std::move(padding);
}

void Pool::set_outputs(Joining::Outputs outputs) {
  const MutexLock lock = enter();
  joining_.set_outputs(std::move(outputs));
}

void Pool::set_apart_inputs(Joining::Apart inputs) {
  const MutexLock lock = enter();
  joining_.set_apart_inputs(std::move(inputs));
}

Error Pool::reject() {
  const MutexLock lock(mutex_);
  ++counts_.rejected;
  return Error(ErrorKind::queue_full, "the pool's queue is full: " + std::to_string(waiting_) +
                                          (waiting_ == 1 ? " request waits" : " requests wait") +
                                          ": send fewer at once, wait with when_full='block', or raise max_queue");
}

bool Pool::cancel(const std::shared_ptr<Request>& request) {
  MutexLock lock = enter();
  if (const auto taken = take_back(*request)) {
    ++counts_.cancelled_waiting;
    finish(*taken, Request::Outcome::cancelled, make_error(ErrorKind::cancelled, "the request was cancelled"));
    if (closing_ && settled()) {
      settled_.notify_all();
    }
    lock.unlock();
    Requests finished{taken};
    announce(finished);
    return true;
  }
  if (request->phase_ != Request::Phase::running) {
    return false;
  }
  request->unwanted_ = true;
  end_early(*request);
  return true;
}

std::exception_ptr Pool::deadline_error(const Request& request, const std::string& what) const {
  const auto allowed = request.deadline.value_or(request.submitted) - request.submitted;
  using Tenths = std::chrono::duration<std::int64_t, std::ratio<1, 10'000>>;
  const std::int64_t tenths = std::max<std::int64_t>(0, std::chrono::ceil<Tenths>(allowed).count());
  const std::string milliseconds =
      std::to_string(tenths / 10) + (tenths % 10 == 0 ? "" : "." + std::to_string(tenths % 10));
  const auto wakes = std::ranges::find_if(groups_, [&request](const auto& group) {
    return group->sleep_state() == DeviceGroup::SleepState::waking && group->is_for(request);
  });
  return make_error(ErrorKind::deadline,
                    what + milliseconds + " ms: " +
                        (wakes == groups_.end() ? "give a longer timeout, in seconds, or send fewer requests at once"
                                                : to_string((*wakes)->device) +
                                                      " was waking: call Pool.wake before, or give a longer timeout"));
}

void Pool::start_timer(const Request& request) {
  if (!request.deadline || timer_.joinable()) {
    return;
  }
  try {
    timer_ = std::thread(&Pool::keep_deadlines, this);
  } catch (const std::system_error& error) {
    throw Error(ErrorKind::fail, std::string("cannot start the thread for deadlines: ") + error.what());
  }
}

void Pool::keep_deadlines() {
  const NoWaiting no_waiting;
  MutexLock lock(mutex_);
  while (!timer_stops_) {
    if (timers_.empty()) {
      timer_wakes_ = Clock::time_point::max();
      timers_changed_.wait(mutex_);
      continue;
    }
    const Clock::time_point first = timers_.begin()->first;
    if (first > Clock::now()) {
      timer_wakes_ = first;  // most requests are answered before their deadline: then it goes on to wait for the next
      timers_changed_.wait_until(mutex_, first);
      continue;
    }
    auto request = timers_.begin()->second.lock();
    timers_.erase(timers_.begin());
    request->timer_.reset();
    if (take_back(*request)) {
      ++counts_.failed_waiting;
      finish(*request, Request::Outcome::failed,
             deadline_error(*request, "the request still waited for a session after "));
    } else {
      ++static_cast<Worker*>(request->worker_)->group->counts.failed;
      request->given_up_ = true;
      end_early(*request);
      finish(*request, Request::Outcome::failed, deadline_error(*request, "the request was not answered within "));
    }
    if (closing_ && settled()) {
      settled_.notify_all();
    }
    auto receiver = std::move(request->receiver);  // under the lock: its run may end
    lock.unlock();
    Requests finished{std::move(request)};  // which, freed under the lock, could not ask the pool for anything
    if (receiver) {
      receiver->receive(std::move(finished));
    }
    finished.clear();
    receiver.reset();
    lock.lock();
  }
}

}  // namespace ortmulti
