#include <algorithm>
#include <cmath>
#include <ratio>
#include <system_error>
#include <utility>

#include "core/policy/numbers.hpp"
#include "core/pool/batch_traits.hpp"
#include "core/pool/device_group.hpp"
#include "core/pool/gpu_session.hpp"
#include "core/pool/pool.hpp"

namespace ortmulti {

void Pool::check_accepted(const Request& request) const {
  if (failure_) {
    std::rethrow_exception(failure_);
  }
  check_open();
  std::string problems;
  bool known = false;
  for (const auto& group : groups_) {
    if (group->known() && group->is_for(request)) {
      known = true;
      if (group->usable() && group->wakes_by_itself()) {
        return;
      }
      problems += (problems.empty() ? "" : "; ") + to_string(group->device) + ": " +
                  (group->removed()          ? "it was removed"
                   : group->broken().empty() ? "it is asleep, and wakes with Pool.wake"
                                             : group->broken());
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

// Whoever waits for room submits a request several times.
void Pool::note_submitted(Request& request) {
  if (request.submitted == Clock::time_point()) {
    request.submitted = Clock::now();
    request.due_ = request.deadline.value_or(request.submitted + Request::without_deadline);
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

// While nobody waits there is nobody to join; those who come meanwhile join each other.
bool Pool::runs_batches_here(const DeviceGroup& group) const {
  const RecentAverage& time = group.single_run_time;
  return group.device == Device::cpu() && !options_.batching.padding && time.count() >= *numbers::queue_min_runs &&
         time.value() < options_.hand_over;
}

bool Pool::run_here(Request& request, bool interruptible) {
  check_process();
  const Batching& batching = options_.batching;
  // Without the lock, which most pools that join requests need not take twice for each.
  if (request.deadline ||
      (batching.enabled() && (has_gpus_ || batching.max_delay.count() > 0 || !batching.sizes.empty()))) {
    return false;
  }
  note_submitted(request);
  prefer_device_of_inputs(request);
  MutexLock lock(mutex_);
  check_accepted(request);
  const std::size_t turn = next_group_;
  Worker* worker = idle_worker(request);
  if (worker == nullptr || (worker->group->gate && worker->group->device.is_cuda())) {
    return false;
  }
  const RecentAverage& run_time = worker->group->run_time;
  if ((batching.enabled() && !runs_batches_here(*worker->group)) ||
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
  Deadlines::Times deadline = Deadlines::of(request);  // made first: where memory ends nothing has been done yet
  Requests finished;
  if (options_.max_waiting) {
    finished.reserve(1);
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
    if (until > Clock::now()) {
      hurry(*request);
    }
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
  deadlines_.add(std::move(deadline), *request);
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
  count(waiting_.for_any());
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
  const RequestQueue& for_any = waiting_.for_any();
  Request* last = for_any.empty() ? nullptr : for_any.rbegin()->get();
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

Error Pool::reject(std::size_t requests) {
  const MutexLock lock(mutex_);
  counts_.rejected += requests;
  return Error(ErrorKind::queue_full, "the pool's queue is full: " + std::to_string(waiting_.size()) +
                                          (waiting_.size() == 1 ? " request waits" : " requests wait") +
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
  const auto begin = request.timed_from == Clock::time_point() ? request.submitted : request.timed_from;
  const auto allowed = request.deadline.value_or(begin) - begin;
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
  while (auto request = deadlines_.wait(mutex_)) {
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

void Pool::set_padding(std::shared_ptr<const Padding> padding) {
  const MutexLock lock = enter();
  options_.batching.padding = std::move(padding);
  forget_clients();
}

void Pool::set_outputs(Joining::Outputs outputs) {
  const MutexLock lock = enter();
  joining_.set_outputs(std::move(outputs));
  forget_clients();
}

void Pool::set_apart_inputs(Joining::Apart inputs) {
  const MutexLock lock = enter();
  joining_.set_apart_inputs(std::move(inputs));
}

}  // namespace ortmulti
