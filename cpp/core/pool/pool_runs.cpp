#include <algorithm>
#include <utility>

#include "core/policy/numbers.hpp"
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
    worker.batch_wait.record_run(size.rows, worker.group->waiting.size() + waiting_.for_any().size(), time);
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
  const std::size_t waiting = group.waiting.size() + waiting_.for_any().size();
  if (worker.runner->makes_graphs()) {
    group.in_flight->leave_out();
  }
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
  const Clock::time_point now = options_.now();
  const std::size_t there = group.busy() + group.waiting.size() + waiting_.for_any().size();
  request.side_by_side = group.side_by_side.choose(now, group.at_once(), there, options_.cores);
  if (request.endable && request.run_options == nullptr) {
    request.run_options = &request.own_run_options.emplace();  // under the lock: end_early() looks at them
  }
  const SharedTime::Part begun = group.time.begin(now);
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
  end.time = group.time.end(begun, options_.now());
  worker.in_run = nullptr;
  worker.group->counts.graph_runs += request.by_graph ? 1 : 0;
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
    if (request.run_size == 1) {
      group.single_run_time.record(request.ended - request.started);
    }
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
  deadlines_.remove(request);
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
