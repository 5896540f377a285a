#include <algorithm>
#include <iterator>
#include <utility>

#include "core/ort/library.hpp"
#include "core/policy/numbers.hpp"
#include "core/pool/audit.hpp"
#include "core/pool/device_group.hpp"
#include "core/pool/pool.hpp"

namespace ortmulti {
namespace {

std::int64_t to_ns(Request::Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace

void Pool::work(Worker& worker) {
  const NoWaiting no_waiting;
  const MutexLock lock(mutex_);
  const auto called = [&worker] { return worker.called(); };
  bool at_once = false;
  for (;;) {
    // The first request of the next batch need not wake it: the batch waits as long for others.
    if (worker.wakes != Clock::time_point() && !worker.wake.wait_until(mutex_, worker.wakes, called)) {
      worker.wakes = {};
    }
    worker.wake.wait(mutex_, called);
    worker.wakes = {};
    if (worker.state == Worker::State::ending) {
      return;
    }
    if (worker.state == Worker::State::waking_device) {
      wake_up(worker);
      continue;
    }
    run_batch(worker, at_once);
    hand_over(worker);
    at_once = worker.busy();
    if (!at_once && options_.batching.max_delay.count() > 0) {
      worker.wakes = worker.freed + options_.batching.max_delay;
    }
  }
}

bool Pool::join_forming(const std::shared_ptr<Request>& request) {
  if (!joins_others(*request)) {
    return false;
  }
  for (const auto& worker : workers_) {
    if (worker->state == Worker::State::forming && !worker->batch.empty() && worker->group->usable() &&
        worker->group->takes(*request) && worker->batch.front()->batch_key_ == request->batch_key_ &&
        worker->group->is_for(*request) && worker->size.rows + request->size_.rows <= worker->most &&
        options_.batching.may_join(worker->size, request->size_, worker->group->cost)) {
      assign(*worker, request);
      worker->size.add(request->size_);
      if (worker->size.rows >= worker->enough || options_.batching.is_full(worker->size)) {
        worker->wake.notify_one();
      }
      return true;
    }
  }
  return false;
}

bool Pool::joins_others(const Request& request) const {
  return !request.batch_key_.empty() && joining_.joins(request.batch_key_, request.caller);
}

void Pool::take_waiting(Worker& worker) {
  const Batching& batching = options_.batching;
  // No reference to the request: if it is taken back meanwhile, it would be freed here, under the lock.
  const std::string key = worker.batch.front()->batch_key_;
  const bool background = worker.batch.front()->priority < 0;
  std::vector<JointSize> sizes{worker.size};
  std::vector<Request*> candidates{nullptr};  // of the batch so far, and those that may join it
  std::size_t rows = worker.size.rows;
  std::size_t left = 8 * batching.max_size;  // requests of other shapes could be many
  const Request* unlike = nullptr;
  worker.group->each_waiting(anywhere_, [&](Request& request) ORTMULTI_REQUIRES(mutex_) {
    if (request.batch_key_ != key) {
      const bool alike = (request.priority < 0) == background;
      unlike = alike && joins_others(request) ? &request : unlike;
    } else if ((batching.padding || rows + request.size_.rows <= worker.most) && joins_others(request) &&
               worker.group->takes(request)) {
      sizes.push_back(request.size_);
      candidates.push_back(&request);
      rows += request.size_.rows;
    }
    return (batching.padding || rows < worker.most) && --left > 0;
  });
  for (const std::size_t chosen : batching.choose(sizes, worker.group->cost)) {
    if (Request* const request = candidates[chosen]) {
      worker.size.add(request->size_);
      assign(worker, unqueue(*request));
    }
  }
  if (unlike != nullptr && worker.batch.size() == 1) {
    constexpr std::uint64_t report_every = 1000;  // each so many times: it takes a microsecond
    if (counts_.unlike++ % report_every == 0) {
      counts_.why_unlike = why_unlike(*worker.batch.front(), *unlike);
    }
  }
}

void Pool::gather(Worker& worker, bool at_once) {
  const Clock::time_point until = worker.batch.front()->submitted + options_.batching.max_delay;
  take_waiting(worker);
  const std::chrono::nanoseconds max_delay = options_.batching.max_delay;
  if (max_delay.count() == 0) {
    return;
  }
  const auto complete = [&]() ORTMULTI_REQUIRES(mutex_) {
    return worker.size.rows >= worker.enough || options_.batching.is_full(worker.size) || worker.batch.empty() ||
           closing_ || !worker.group->usable();
  };
  const std::size_t waited = at_once ? worker.size.rows : 0;
  if (worker.wake.wait_until(mutex_, until, complete)) {
    return;
  }
  const std::size_t there = worker.size.rows;
  worker.enough = std::min(worker.most, waited + worker.batch_wait.answered());
  Clock::time_point now = Clock::now();
  const std::size_t others = worker.group->device.is_cuda() ? workers_.size() : worker.group->at_once();
  const Clock::time_point end = worker.freed + worker.batch_wait.longest_wait(others);
  if (complete() || now >= end || !worker.batch_wait.tries()) {
    return;
  }
  for (std::size_t before = 0; worker.size.rows > before && now < end; now = Clock::now()) {  // while any come
    before = worker.size.rows;
    if (worker.wake.wait_until(mutex_, std::min(end, now + max_delay), complete)) {
      break;
    }
  }
  worker.batch_wait.record_wait(worker.size.rows - std::min(worker.size.rows, there), worker.enough - there);
}

void Pool::run_batch(Worker& worker, bool at_once) {
  if (worker.state == Worker::State::forming && !worker.batch.empty()) {
    gather(worker, at_once);
  }
  worker.state = Worker::State::running;
  Requests all = std::move(worker.batch);
  worker.batch.clear();
  Requests finished;
  Requests batch;
  RunEnd joint;
  finished.reserve(all.size());
  batch.reserve(all.size());
  for (auto& request : all) {
    if (!request->wanted()) {
      request->started = Clock::now();
      conclude(worker, request, {}, finished);
    } else {
      batch.push_back(std::move(request));
    }
  }
  worker.batch = batch;
  JointSize size;
  for (const auto& request : batch) {
    size.add(request->size_);
  }
  const Clock::time_point began = options_.now();
  const auto as_it_is = [&](const Request& request) ORTMULTI_REQUIRES(mutex_) {
    return options_.batching.leaves(request.size_) || !joins_others(request);
  };
  if (batch.size() == 1 && as_it_is(*batch.front())) {
    joint = run_one(worker, *batch.front());
    conclude(worker, batch.front(), joint, finished);
  } else if (!batch.empty()) {
    joint = run_joint(worker, batch);
    const bool movable = std::ranges::all_of(
        batch, [](const auto& request) { return DeviceGroup::may_try_elsewhere(*request) || !request->wanted(); });
    const auto suspicion = joint.error && movable ? worker.group->suspect(worker, joint) : nullptr;
    Requests again;
    for (const auto& request : batch) {
      if (suspicion && DeviceGroup::may_try_elsewhere(*request)) {
        worker.group->mark_retried(*request, suspicion);
        place(request);
        continue;
      }
      if (joint.error && request->suspicion_) {
        request->suspicion_->cleared = true;  // the same failed here
      }
      if (joint.error && request->wanted() && worker.group->broken().empty()) {
        again.push_back(request);
      } else {
        conclude(worker, request, joint, finished);
      }
    }
    if (!again.empty()) {
      run_again(worker, std::move(again), joint, finished);
    }
  }
  worker.batch.clear();
  if (!joint.error && !batch.empty()) {
    joining_.succeeded_together(batch.front()->batch_key_);
    const std::chrono::nanoseconds time = options_.now() - began;
    worker.batch_wait.record_run(size.rows, time);
    if (size.longest == 0 && joint.time.count() > 0) {  // else all of them were cancelled
      worker.group->note_rows(batch.front()->batch_key_, size.rows, joint.time + joint.copying);
    } else if (joint.time.count() > 0) {
      const std::size_t elements = options_.batching.padding->elements(size);
      worker.group->cost.record(size.rows, options_.batching.rounded(size.longest), joint.time);
      worker.group->counts.real_elements += size.elements;
      worker.group->counts.padded_elements += elements - size.elements;
    }
  }
  worker.freed = Clock::now();
  std::optional<std::size_t> padded_elements;  // of what was answered, without padding
  if (options_.batching.padding) {
    padded_elements = joint.error ? 0 : size.elements;
  }
  const auto answered = std::ranges::count(finished, Request::Outcome::done, &Request::outcome);
  {
    const MutexUnlock unlocked(mutex_);
    // What is finished is held by `finished` alone. Freed under the lock, it could not ask the pool for anything.
    all.clear();
    batch.clear();
    joint = {};
    announce(finished);
  }
  adapt(worker, static_cast<std::size_t>(answered), padded_elements);
}

void Pool::adapt(Worker& worker, std::size_t answers, std::optional<std::size_t> elements) {
  DeviceGroup& group = *worker.group;
  if (!group.in_flight) {
    return;
  }
  std::size_t most = group.workers.size();
  if (group.device.is_cuda()) {
    // A run's thread is busy, with the launches or waiting for them; others of the process need cores too.
    most = std::min(most,
                    static_cast<std::size_t>(static_cast<double>(options_.cores) * *numbers::in_flight_share_of_cores) /
                        groups_.size());
  }
  const std::size_t waiting = group.waiting.size() + anywhere_.size();
  if (group.in_flight->record(options_.now(), answers, waiting, most, elements) || group.in_flight->asked()) {
    std::optional<std::string> why_not;
    {
      const MutexUnlock unlocked(mutex_);
      why_not = worker.runner->why_no_more();
    }
    if (why_not && group.in_flight->asked()) {  // else another thread was told meanwhile
      why_not = why_not->empty() ? start_more(group, group.in_flight->next()) : *why_not;
      group.in_flight->try_more(options_.now(), *why_not);
      give_waiting(group);
    }
  }
  if (group.in_flight->take_stayed()) {
    const MutexUnlock unlocked(mutex_);
    worker.runner->no_more_run();
  }
}

RunEnd Pool::run_one(Worker& worker, Request& request) const {
  worker.in_run = &request;
  ++worker.group->counts.runs;
  worker.group->counts.batch_size.record(std::max<std::size_t>(1, worker.batch.size()));  // none in a caller's thread
  DeviceGroup& group = *worker.group;
  const std::size_t there = group.busy() + group.waiting.size() + anywhere_.size();
  request.side_by_side = group.side_by_side.choose(group.at_once(), there, options_.cores);
  if (request.endable && request.run_options == nullptr) {
    request.run_options = &request.own_run_options.emplace();  // under the lock: end_early() looks at them
  }
  const SharedTime::Part begun = worker.group->time.begin(options_.now());
  RunEnd end;
  {
    const MutexUnlock unlocked(mutex_);
    request.started = Clock::now();
    request.run_error_ = nullptr;
    request.by_graph = false;
    request.run_size = 1;
    try {
      worker.runner->run(request);
    } catch (...) {
      end.error = std::current_exception();
      request.clear_outputs();
    }
    request.ended = Clock::now();
    if (end.error) {
      end.why_broken = worker.runner->why_broken();
    }
  }
  end.time = worker.group->time.end(begun, options_.now());
  worker.in_run = nullptr;
  worker.group->counts.graph_runs += request.by_graph ? 1 : 0;
  return end;
}

void Pool::run_again(Worker& worker, Requests batch, const RunEnd& joint, Requests& finished) {
  const std::string key = batch.front()->batch_key_;
  bool all_succeed = !joint.unjoined;
  std::vector<Requests> parts;  // the next one is the last
  const auto cut = [&parts](const Requests& whole, bool halves) {
    const std::size_t each = halves ? std::max<std::size_t>(1, (whole.size() + 1) / 2) : 1;
    for (std::size_t end = whole.size(); end > 0;) {
      const std::size_t begin = (end - 1) / each * each;
      parts.emplace_back(whole.begin() + static_cast<std::ptrdiff_t>(begin),
                         whole.begin() + static_cast<std::ptrdiff_t>(end));
      end = begin;
    }
  };
  cut(batch, !joint.unjoined);
  batch.clear();
  while (!parts.empty()) {
    Requests part = std::move(parts.back());
    parts.pop_back();
    RunEnd end = joint;
    if (worker.group->broken().empty()) {
      worker.batch = part;
      end = part.size() == 1 ? run_one(worker, *part.front()) : run_joint(worker, part);
    }
    if (part.size() > 1 && end.error && worker.group->broken().empty()) {
      cut(part, !end.unjoined);
      all_succeed = all_succeed && !end.unjoined;
      continue;
    }
    all_succeed = all_succeed && !end.error;
    for (const auto& request : part) {
      conclude(worker, request, end, finished);
    }
  }
  if (all_succeed && joining_.failed_together(key)) {
    joining_.stop(key);
    std::string text = text_of(joint.error);
    text.erase(text.find_last_not_of('\n') + 1);
    note_stop("they failed together, and succeeded alone: " + text, ORT_LOGGING_LEVEL_WARNING);
  }
}

Pool::Audit Pool::audit(Worker& worker, const std::shared_ptr<Request>& request, const JointSize& size,
                        const std::vector<JointSize>& sizes, const std::set<std::string>& random) const {
  const Clock::time_point began = options_.now();
  const auto run = [&worker](const std::shared_ptr<Request>& copy) {
    static const Ort::RunOptions ordinary;  // no CUDA graph is to be made of it
    copy->run_options = &ordinary;
    worker.runner->run(*copy);
  };
  Audit found;
  try {
    const auto alone = copy_alone(request, size, options_.batching);
    run(alone);
    const Difference difference = compare(*request, *alone, random);
    if (difference && !difference.in_shape && !(difference.in_floats && difference.widely)) {
      const auto filled = copy_in_size_of(request, size, sizes, options_.batching);
      run(filled);
      found.by_size = !compare(*request, *part_of(*filled, size, sizes, options_.batching), random);
    }
    found.difference = difference.text;
  } catch (...) {  // which says nothing of the joint run's answer
    found = {};
  }
  found.time = options_.now() - began;
  return found;
}

void Pool::note_audits(const Joining::Audit& done, const std::vector<Audit>& found, RunEnd& end) {
  if (found.empty()) {
    return;
  }
  std::chrono::nanoseconds time{0};
  for (const Audit& audit : found) {
    time += audit.time;
  }
  joining_.audited(done, time);
  counts_.audits += found.size();
  counts_.audit_ns += static_cast<std::uint64_t>(time.count());
  for (const Audit& audit : found) {
    if (audit.difference.empty() || (audit.by_size && joining_.is_rounding())) {
      continue;
    }
    ++counts_.audit_differences;
    joining_.stop_all();
    note_stop(audit.difference + ": load the model without batching, or ask for other outputs",
              ORT_LOGGING_LEVEL_ERROR);
    end.error = make_error(ErrorKind::invalid_argument, audit.difference);  // of no device
    end.unjoined = true;
    return;
  }
}

RunEnd Pool::run_joint(Worker& worker, const Requests& batch) {
  RunEnd end;
  std::shared_ptr<Request> joint;
  std::vector<JointSize> sizes;
  std::chrono::nanoseconds copying{0};
  const Clock::time_point started = Clock::now();
  try {
    const MutexUnlock unlocked(mutex_);
    std::ranges::transform(batch, std::back_inserter(sizes), &Request::size_);
    joint = join(batch, sizes, options_.batching);
    copying = Clock::now() - started;
  } catch (...) {
    end.error = std::current_exception();
  }
  const bool wanted = joint && !nobody_waits(batch);  // they may have been cancelled while they were joined
  Joining::Audit due;
  if (wanted) {
    end = run_one(worker, *joint);
    if (!end.error && !full()) {
      due = joining_.audit(batch.front()->batch_key_, batch.size(), sum_of(sizes).rows, end.time);
    }
  }
  const std::set<std::string>& random = joining_.outputs().random;  // which stay, while requests come
  std::vector<Audit> found;
  {
    const MutexUnlock unlocked(mutex_);
    if (wanted && !end.error) {
      try {
        const Clock::time_point began = Clock::now();
        split(*joint, batch, sizes, options_.batching);
        end.copying = copying + (Clock::now() - began);
        if (!due.which.empty() && alike(batch)) {
          due.are_alike(batch.size());
        }
        for (const std::size_t which : due.which) {
          found.push_back(audit(worker, batch[which], sizes[which], sizes, random));
        }
      } catch (const Error& cannot) {
        end.error = std::current_exception();
        end.unjoined = cannot.kind() == ErrorKind::invalid_argument;
      } catch (...) {
        end.error = std::current_exception();
      }
    }
    const Clock::time_point ended = Clock::now();
    for (const auto& request : batch) {
      request->started = started;
      request->ended = ended;
      request->run_error_ = nullptr;
      request->run_size = batch.size();
      if (joint) {
        request->copying = joint->copying;
        request->waiting_for_session = joint->waiting_for_session;
      }
    }
    joint.reset();  // much memory, which others need not wait for
  }
  if (end.unjoined) {
    joining_.stop(batch.front()->batch_key_);
    note_stop(text_of(end.error), ORT_LOGGING_LEVEL_WARNING);
  } else {
    note_audits(due, found, end);
  }
  if (end.error) {
    for (const auto& request : batch) {
      request->clear_outputs();
    }
  }
  return end;
}

void Pool::conclude(Worker& worker, const std::shared_ptr<Request>& request, const RunEnd& end, Requests& finished) {
  if (end_run(worker, *request, end, finished)) {
    finished.push_back(request);
  } else {
    place(request);
  }
}

bool Pool::end_run(Worker& worker, Request& request, const RunEnd& end, Requests& finished) {
  DeviceGroup& group = *worker.group;
  const bool failed = end.error != nullptr;
  request.ran_on = group.device;
  if (failed) {
    request.run_error_ = end.error;
  }
  const bool wanted = request.wanted();
  const bool may_wait = group.usable() || (!request.device && any_usable());  // a removed device takes back nothing
  if (failed && group.in_flight && kind_of(end.error) == ErrorKind::out_of_memory && wanted && may_wait &&
      !request.retried_ && group.in_flight->give_way()) {
    group.mark_retried(request);
    return false;
  }
  if (const auto& [timeline, id] = request.trace; timeline) {
    timeline->add("queue", to_ns(request.submitted), to_ns(request.started), to_string(group.device), id);
  }
  if (failed && group.broken().empty()) {
    if (!end.why_broken.empty()) {
      take_out(group, end.why_broken, finished);
    } else if (const auto suspicion = DeviceGroup::may_try_elsewhere(request) ? group.suspect(worker, end) : nullptr) {
      group.mark_retried(request, suspicion);
      return false;
    }
  } else if (failed && any_usable() && DeviceGroup::may_move(request)) {
    group.mark_retried(request);  // the device broke under another request's run
    return false;
  }
  if (!failed) {
    group.run_time.record(request.ended - request.started);
  }
  if (options_.batching.enabled() && (!failed || request.run_size == 1)) {
    joining_.note(request.caller, failed);
  }
  if (request.given_up_) {
    // It was counted when its deadline passed.
  } else if (request.unwanted_) {
    ++group.counts.cancelled;
    finish(request, Request::Outcome::cancelled, make_error(ErrorKind::cancelled, "the request was cancelled"));
  } else if (failed) {
    ++group.counts.failed;
    finish(request, Request::Outcome::failed, end.error);
  } else {
    ++group.counts.done;
    if (group.note_success(worker)) {
      give_waiting(group);
    }
    finish(request, Request::Outcome::done);
  }
  group.counts.queue.record((request.started - request.submitted + request.waiting_for_session).count());
  group.counts.copy.record(request.copying.count());
  group.counts.run.record((request.ended - request.started - request.waiting_for_session - request.copying).count());
  group.counts.total.record((request.ended - request.submitted).count());
  return true;
}

bool Pool::nobody_waits(const Requests& batch) {
  return std::ranges::none_of(batch, [](const auto& request) { return request->wanted(); });
}

void Pool::end_early(Request& request) {
  Worker& worker = *static_cast<Worker*>(request.worker_);
  if (worker.in_run != nullptr && nobody_waits(worker.batch)) {
    worker.in_run->ending.store(true);
    worker.runner->terminate(*worker.in_run);
  }
}

void Pool::take_out(DeviceGroup& group, const std::string& reason, Requests& finished) {
  group.break_down(reason);
  fail_waiting(group, make_error(ErrorKind::device, to_string(group.device) + " was taken out of the pool: " + reason),
               finished);
  refresh();
}

void Pool::finish(Request& request, Request::Outcome outcome, std::exception_ptr error) {
  if (request.timer_) {
    timers_.erase(*request.timer_);
    request.timer_.reset();
  }
  if (!request.given_up_ && request.ended < request.submitted) {  // it never ran
    request.ended = Clock::now();
  }
  request.phase_ = Request::Phase::finished;
  request.worker_ = nullptr;
  request.outcome = outcome;
  request.error = std::move(error);
  if (std::shared_ptr<Suspicion> suspicion = std::move(request.suspicion_)) {
    suspicion->cleared |= outcome != Request::Outcome::done || request.ran_on == suspicion->device;
    if (suspicion.use_count() == 1) {
      const Suspicion decided = *suspicion;
      suspicion.reset();
      group_of(decided.device).decide(decided, options_.now());
      refresh();
    }
  }
}

void Pool::announce(Requests& finished) {
  for (auto next = finished.begin(); next != finished.end(); ++next) {
    // Out of the request first, which it may refer to. Null: it went with one before it, or nobody waits for it.
    const auto receiver = *next ? (*next)->receiver : nullptr;
    if (!receiver) {
      if (*next && (*next)->given_up_) {
        (*next)->clear_outputs();  // nobody else does
      }
      continue;
    }
    Requests together;
    together.reserve(static_cast<std::size_t>(finished.end() - next));
    for (auto other = next; other != finished.end(); ++other) {
      if (*other && (*other)->receiver == receiver) {
        (*other)->receiver = nullptr;
        if ((*other)->outcome != Request::Outcome::done) {
          (*other)->clear_outputs();
        }
        together.push_back(std::move(*other));
      }
    }
    receiver->receive(std::move(together));
  }
  finished.clear();
}

}  // namespace ortmulti
