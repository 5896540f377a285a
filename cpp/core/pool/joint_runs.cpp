#include "core/pool/joint_runs.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/ort/library.hpp"
#include "core/pool/audit.hpp"
#include "core/pool/batch_traits.hpp"
#include "core/pool/device_group.hpp"
#include "core/pool/joint_request.hpp"

namespace ortmulti {

void JointRuns::take_waiting(Worker& worker) {
  const Batching& batching = options_.batching;
  // No reference to the request: if it is taken back meanwhile, it would be freed here, under the lock.
  const std::string key = worker.batch.front()->batch_key_;
  const bool background = worker.batch.front()->priority < 0;
  std::vector<JointSize> sizes{worker.size};
  std::vector<Request*> candidates{nullptr};  // of the batch so far, and those that may join it
  std::size_t rows = worker.size.rows;
  std::size_t left = 8 * batching.max_size;  // requests of other shapes could be many
  const Request* unlike = nullptr;
  worker.group->each_waiting(waiting_.for_any(), [&](Request& request) ORTMULTI_REQUIRES(mutex_) {
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

std::size_t JointRuns::at_once_anywhere() const {
  std::size_t runs = 0;
  for (const auto& group : groups_) {
    runs += group->dispatches() ? group->at_once() : 0;
  }
  return std::max<std::size_t>(1, runs);
}

bool JointRuns::holds_up_others(const Worker& worker) {
  bool found = false;
  worker.group->each_waiting(waiting_.for_any(), [&](const Request& request) ORTMULTI_REQUIRES(mutex_) {
    found = worker.yields_to(request) && worker.group->takes(request);
    return !found && request.retried_;  // others of lower priorities come later
  });
  return found;
}

void JointRuns::gather(Worker& worker, bool at_once) {
  const std::chrono::nanoseconds max_delay = options_.batching.max_delay;
  const Clock::time_point end_of_delay = worker.batch.front()->submitted + max_delay;
  take_waiting(worker);
  std::size_t waited = 0;  // while it ran: who came since then was answered
  for (const auto& request : worker.batch) {
    waited += at_once && request->submitted <= worker.freed ? request->size_.rows : 0;
    worker.until = std::min(worker.until, worker.begin_by(*request));
  }
  if (holds_up_others(worker)) {
    worker.until = {};
  }
  const std::size_t expected = worker.batch_wait.enough(waited, worker.most);
  const std::size_t others = worker.group->busy() - 1;
  const bool whole = max_delay.count() > 0 && !worker.batch_wait.ends_delays(others);
  worker.enough = whole ? worker.most : expected;
  const auto complete = [&]() ORTMULTI_REQUIRES(mutex_) {
    return worker.size.rows >= worker.enough || options_.batching.is_full(worker.size) || worker.batch.empty() ||
           closing_ || !worker.group->usable() || worker.group->sleep_state() != DeviceGroup::SleepState::awake;
  };
  const bool waits = whole && !complete() && Clock::now() < worker.until;
  if (max_delay.count() > 0) {
    Clock::time_point until;
    do {  // another request, or its deadline, may bring the end nearer
      until = worker.until;
      worker.wake.wait_until(mutex_, until,
                             [&]() ORTMULTI_REQUIRES(mutex_) { return complete() || worker.until < until; });
    } while (worker.until < until && !complete());
  }
  const bool ended = max_delay.count() > 0 && complete();
  const bool hurried = worker.until < end_of_delay;
  if (waits && (worker.size.rows > expected || (!ended && !hurried))) {
    worker.batch_wait.record_delay(worker.size.rows, expected, others);
  }
  if (ended || hurried) {
    return;
  }
  worker.enough = expected;
  const std::size_t there = worker.size.rows;
  Clock::time_point now = Clock::now();
  const Clock::time_point end = worker.freed + worker.batch_wait.longest_wait(at_once_anywhere());
  if (complete() || now >= end || !worker.batch_wait.tries()) {
    return;
  }
  const Clock::duration each = max_delay.count() > 0 ? Clock::duration(max_delay) : end - now;
  const auto over = [&]() ORTMULTI_REQUIRES(mutex_) { return complete() || worker.until < end_of_delay; };
  for (std::size_t before = 0; worker.size.rows > before && now < end; now = Clock::now()) {  // while any come
    before = worker.size.rows;
    if (worker.wake.wait_until(mutex_, std::min(end, now + each), over)) {
      break;
    }
  }
  if (worker.until >= end_of_delay) {  // else nobody knows who would have come
    worker.batch_wait.record_wait(worker.size.rows - std::min(worker.size.rows, there), worker.enough - there);
  }
}

JointRuns::Audit JointRuns::audit(Worker& worker, const std::shared_ptr<Request>& request, const JointSize& size,
                                  const std::vector<JointSize>& sizes, const Batching& batching, bool in_size,
                                  const std::set<std::string>& random) const {
  const Clock::time_point began = options_.now();
  const auto run = [&worker](const std::shared_ptr<Request>& copy) {
    static const Ort::RunOptions ordinary;  // no CUDA graph is to be made of it
    copy->run_options = &ordinary;
    worker.runner->run(*copy);
  };
  const auto differs_in_size = [&] {
    const auto filled = copy_in_size_of(request, size, sizes, batching);
    run(filled);
    return compare(*request, *part_of(*filled, size, sizes, batching), random);
  };
  Audit found;
  try {
    if (in_size) {
      found.difference = differs_in_size().text;
    } else {
      const auto alone = copy_alone(request, size, batching);
      run(alone);
      const Difference difference = compare(*request, *alone, random);
      if (difference && !difference.in_shape && !(difference.in_floats && difference.widely)) {
        found.by_size = !differs_in_size();
      }
      found.difference = difference.text;
    }
  } catch (...) {  // which says nothing of the joint run's answer
    found = {};
  }
  found.time = options_.now() - began;
  return found;
}

void JointRuns::note_audits(const Joining::Audit& done, const std::vector<Audit>& found, RunEnd& end) {
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

RunEnd JointRuns::run_joint(Worker& worker, const Requests& batch) {
  RunEnd end;
  std::shared_ptr<Request> joint;
  std::vector<JointSize> sizes;
  std::chrono::nanoseconds copying{0};
  const Clock::time_point started = Clock::now();
  const std::string& key = batch.front()->batch_key_;
  std::size_t rows = 0;
  for (const auto& request : batch) {
    rows += request->size_.rows;
  }
  const bool held = worker.group->holds_rows(key, options_.batching);
  const std::size_t padded = held ? worker.group->padded_rows(key, rows, options_.batching) : 0;
  Batching batching;
  try {
    const MutexUnlock unlocked(mutex_);
    batching = options_.batching;
    if (held) {
      batching.sizes = {padded};
    }
    std::ranges::transform(batch, std::back_inserter(sizes), &Request::size_);
    joint = join(batch, sizes, batching, worker.runner.get());
    copying = Clock::now() - started;
  } catch (...) {
    end.error = std::current_exception();
  }
  const bool wanted = joint && !nobody_waits(batch);  // they may have been cancelled while they were joined
  Joining::Audit due;
  if (wanted) {
    end = run_one(worker, *joint);
    if (!end.error && !full()) {
      due = joining_.audit(key, batch.size(), rows, end.time);
    }
    end.rows = batching.padded(rows);
  }
  const std::set<std::string>& random = joining_.outputs().random;  // which stay, while requests come
  std::vector<Audit> found;
  {
    const MutexUnlock unlocked(mutex_);
    if (wanted && !end.error) {
      try {
        const Clock::time_point began = Clock::now();
        split(*joint, batch, sizes, batching);
        end.copying = copying + (Clock::now() - began);
        if (!due.which.empty() && alike(batch)) {
          due.are_alike(batch.size());
        }
        for (const std::size_t which : due.which) {
          found.push_back(audit(worker, batch[which], sizes[which], sizes, batching, held, random));
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
    joining_.stop(key);
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

void JointRuns::note_stop(const std::string& why, OrtLoggingLevel level) {
  counts_.why_unbatched = why;
  if (counts_.unbatched++ == 0 || level == ORT_LOGGING_LEVEL_ERROR) {
    const std::string& model = joining_.outputs().model;
    onnxruntime_log().push({level, "ortmulti", "", "",
                            (model.empty() ? "" : model + ": ") +
                                "requests that a pool joined are run one at a time from now on: " + why});
  }
}

void JointRuns::forget_clients() {
  for (const auto& worker : workers_) {
    worker->batch_wait = {};
  }
}

RunEnd JointRuns::run_one(Worker& worker, Request& request) const {
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
  end.whole = options_.now() - now;
  end.time = group.time.end(begun, options_.now());
  worker.in_run = nullptr;
  end.by_graph = request.by_graph;
  worker.group->counts.graph_runs += request.by_graph ? 1 : 0;
  return end;
}

bool JointRuns::nobody_waits(const Requests& batch) {
  return std::ranges::none_of(batch, [](const auto& request) { return request->wanted(); });
}

void JointRuns::end_early(Request& request) {
  Worker& worker = *static_cast<Worker*>(request.worker_);
  if (worker.in_run != nullptr && nobody_waits(worker.batch)) {
    worker.in_run->ending.store(true);
    worker.runner->terminate(*worker.in_run);
  }
}

}  // namespace ortmulti
