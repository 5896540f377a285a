#include "core/pool/workers.hpp"

#include <algorithm>
#include <utility>

#include "core/policy/numbers.hpp"
#include "core/pool/device_group.hpp"

namespace ortmulti {
namespace {

std::int64_t to_ns(Request::Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace

void Workers::grow_from_one(WhyNot why_not) {
  const MutexLock lock = enter();
  why_not_ = std::move(why_not);
  for (const auto& group : groups_) {
    group->grow_from_one();
  }
}

void Workers::start(Worker& worker) {
  worker.thread = std::jthread([this, &worker] { work(worker); });  // which waits for the lock
  worker.state = Worker::State::idle;
}

bool Workers::renew(Worker& worker) {
  worker.renews = false;
  try {
    worker.before = std::exchange(worker.thread, std::jthread([this, &worker] { work(worker); }));
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

std::string Workers::start_more(DeviceGroup& group, std::size_t at_once) {
  try {
    while (Worker* const next = group.next_to_start(at_once)) {
      start(*next);
    }
    return {};
  } catch (const std::system_error& error) {
    return std::string("a thread cannot be started: ") + error.what();
  }
}

void Workers::run_again(Worker& worker, Requests batch, const RunEnd& joint, Requests& finished) {
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

void Workers::work(Worker& worker) {
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
    if (worker.renews) {
      if (renew(worker)) {
        return;
      }
      continue;
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

void Workers::run_batch(Worker& worker, bool at_once) {
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
    const JointSize& own = request.size_;
    const bool leaves = options_.batching.rounded(own.longest) == own.longest &&
                        worker.group->padded_rows(request.batch_key_, own.rows, options_.batching) == own.rows;
    return leaves || !joins_others(request);
  };
  if (batch.size() == 1 && as_it_is(*batch.front())) {
    joint = run_one(worker, *batch.front());
    conclude(worker, batch.front(), joint, finished);
  } else if (!batch.empty()) {
    joint = run_joint(worker, batch);
    if (joint.error && kind_of(joint.error) == ErrorKind::out_of_memory) {
      worker.group->stop_holding_rows(batch.front()->batch_key_);
    }
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
    worker.batch_wait.record_run(size.rows, rows_waiting(*worker.group, *batch.front()), time);
    if (size.longest == 0 && joint.time.count() > 0) {  // else all of them were cancelled
      const HeldRows::Run run{.rows = size.rows,
                              .padded = std::max(size.rows, joint.rows),
                              .more = !worker.group->waiting.empty() || !waiting_.for_any().empty(),
                              .by_graph = joint.by_graph,
                              .time = joint.whole};
      worker.group->note_rows(batch.front()->batch_key_, run, joint.time + joint.copying, options_.batching);
    } else if (joint.time.count() > 0) {
      const std::size_t elements = options_.batching.elements(size);
      const std::size_t rows = std::max<std::size_t>(1, size.rows);
      worker.group->cost.record(rows, elements / rows, joint.time);  // by the mean length, if it is packed
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

void Workers::adapt(Worker& worker, std::size_t answers, std::optional<std::size_t> elements) {
  DeviceGroup& group = *worker.group;
  if (!group.in_flight) {
    return;
  }
  std::size_t most = group.workers.size();
  if (group.device.is_cuda()) {
    if (options_.batching.padding) {  // more would have fewer rows each
      most = std::min(most, *numbers::in_flight_first);
    }
    // A run's thread is busy, with the launches or waiting for them; others of the process need cores too.
    most = std::min(most,
                    static_cast<std::size_t>(static_cast<double>(options_.cores) * *numbers::in_flight_share_of_cores) /
                        groups_.size());
    if (std::ranges::any_of(group.workers, [](const Worker* each) { return each->runner->makes_graphs(); })) {
      group.in_flight->leave_out();
    }
  }
  const std::size_t waiting = group.waiting.size() + waiting_.for_any().size();
  if (group.in_flight->record(options_.now(), answers, waiting, most, elements) || group.in_flight->asked()) {
    std::optional<std::string> why_not;
    {
      const WhyNot others = why_not_;
      const MutexUnlock unlocked(mutex_);
      why_not = worker.runner->why_no_more();
      try {
        why_not = others && why_not && why_not->empty() ? others(group.device) : why_not;
      } catch (const std::exception& error) {
        why_not = error.what();
      }
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

void Workers::conclude(Worker& worker, const std::shared_ptr<Request>& request, const RunEnd& end, Requests& finished) {
  if (end_run(worker, *request, end, finished)) {
    finished.push_back(request);
  } else {
    place(request);
  }
}

bool Workers::end_run(Worker& worker, Request& request, const RunEnd& end, Requests& finished) {
  DeviceGroup& group = *worker.group;
  const bool failed = end.error != nullptr;
  const bool refused = failed && kind_of(end.error) == ErrorKind::queue_full;  // by its prepare()
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
  if (failed && !refused && group.broken().empty()) {
    if (!end.why_broken.empty()) {
      take_out(group, end.why_broken, finished);
    } else if (const auto suspicion = DeviceGroup::may_try_elsewhere(request) ? group.suspect(worker, end) : nullptr) {
      group.mark_retried(request, suspicion);
      return false;
    }
  } else if (failed && !refused && any_usable() && DeviceGroup::may_move(request)) {
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
    joining_.note(request.caller, failed && !refused);
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

void Workers::wake_up(Worker& worker) {
  DeviceGroup& group = *worker.group;
  std::shared_ptr<DeviceSleep> sleeper = group.sleeper();
  std::vector<std::shared_ptr<Runner>> freed;
  std::exception_ptr error;
  bool unwanted = false;
  try {
    const MutexUnlock unlocked(mutex_);
    sleeper->wake();
  } catch (const DeviceSleep::Unwanted&) {
    unwanted = true;
  } catch (...) {
    error = std::current_exception();
  }
  Requests finished;
  worker.state = Worker::State::idle;
  if (!error && !unwanted) {
    group.woke();  // `sleeper` has it until the lock is released
    give_waiting(group);
  } else if (!error) {
    const bool asked_awake = group.asked_awake();  // since then
    group.did_not_wake(nullptr);
    if (asked_awake) {
      begin_wake(group);
      group.ask_awake(true);
    } else {
      wake_for_waiting(group);
    }
  } else {
    group.did_not_wake(error);
    if (sleeper->frees_runners()) {
      freed = group.take_runners();  // those that have come
    }
    fail_all(group.waiting, error, finished);
    const auto will_take = [](const auto& other) { return other->usable() && !other->asleep(); };
    if (std::ranges::none_of(groups_, will_take)) {
      fail_all(waiting_.for_any(), error, finished);
    }
    queue_has_space_.notify_all();
  }
  settled_.notify_all();
  const MutexUnlock unlocked(mutex_);
  freed.clear();
  announce(finished);
  sleeper.reset();
}

}  // namespace ortmulti
