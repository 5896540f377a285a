#include "core/pool/dispatcher.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/policy/numbers.hpp"
#include "core/pool/device_group.hpp"

namespace ortmulti {

Worker* Dispatcher::idle_worker(const Request& request) {
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
    if (!probe && (!group.takes(request) || (!full() && may_wait_for_more(group, request)))) {
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

void Dispatcher::assign(Worker& worker, const std::shared_ptr<Request>& request) const {
  worker.batch.push_back(request);
  request->phase_ = Request::Phase::running;
  request->worker_ = &worker;
  if (options_.batching.enabled()) {
    request->assigned = Clock::now();
  }
}

bool Dispatcher::probe_due(const DeviceGroup& group, const Request& request) const {
  return group.suspended() && group.probe_due(request, options_.now());
}

void Dispatcher::note_probe(const Worker& worker, const Request& request) const {
  if (worker.probing && !request.device) {
    worker.group->probes(options_.now());
  }
}

void Dispatcher::hurry(const Request& request) {
  if (!options_.batching.enabled()) {
    return;
  }
  Worker* first = nullptr;
  for (const auto& worker : workers_) {
    if (worker->state == Worker::State::forming && !worker->batch.empty() && worker->until != Clock::time_point() &&
        worker->group->is_for(request) && worker->yields_to(request)) {
      first = first == nullptr || worker->until < first->until ? worker.get() : first;
    }
  }
  if (first != nullptr) {
    first->until = {};
    first->wake.notify_one();
  }
}

void Dispatcher::give(Worker& worker, const std::shared_ptr<Request>& request) {
  assign(worker, request);
  worker.size = request->size_;
  // From now on, not from when its thread wakes up: others would begin batches too. A probe is one request.
  worker.most = worker.group->most_rows(*request, options_.batching);
  const bool forming = options_.batching.enabled() && !options_.batching.is_full(worker.size) &&
                       worker.size.rows < worker.most && joins_others(*request) && !worker.group->suspended();
  worker.group->occupy(worker, forming ? Worker::State::forming : Worker::State::given);
  note_probe(worker, *request);
  const bool ends_delay = worker.batch_wait.ends_delays(worker.group->busy() - 1);
  worker.enough = ends_delay ? worker.batch_wait.enough(0, worker.most) : worker.most;
  worker.until = std::min(request->submitted + options_.batching.max_delay, worker.begin_by(*request));
  const bool wakes_in_time = worker.wakes != Clock::time_point() && worker.wakes <= worker.until;
  if (!forming || !wakes_in_time || worker.size.rows >= worker.enough) {
    worker.wake.notify_one();
  }
}

void Dispatcher::place(const std::shared_ptr<Request>& request) {
  if (join_forming(request)) {
    return;
  }
  if (Worker* idle = idle_worker(*request)) {
    give(*idle, request);
  } else {
    enqueue(request);
  }
}

void Dispatcher::enqueue(const std::shared_ptr<Request>& request) {
  waiting_.insert(queue_of(*request), request);
  hurry(*request);
  wake_for(*request);
  begin_full_runs(*request);
}

std::shared_ptr<Request> Dispatcher::unqueue(Request& request) {
  queue_has_space_.notify_one();
  return waiting_.take(queue_of(request), request);
}

std::shared_ptr<Request> Dispatcher::take_back(Request& request) {
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

std::shared_ptr<Request> Dispatcher::next_for(DeviceGroup& group, std::size_t others) {
  if (Request* const lower = waiting_.turn_of_lower(group.waiting); lower != nullptr && group.takes(*lower)) {
    return unqueue(*lower);
  }
  Request* next = nullptr;
  Request* late = nullptr;  // for nothing: requests after it might become late because of it
  std::size_t max_late = 1000;
  const std::string* waiting = nullptr;  // key of those that wait for more: others need not wait with them
  group.each_waiting(waiting_.for_any(), [&](Request& request) ORTMULTI_REQUIRES(mutex_) {
    const bool has_place = group.has_place_for(request, others);
    const bool takes = has_place && (group.takes(request) || probe_due(group, request));
    if (!takes && request.retried_) {
      return true;  // these come first, and are few
    }
    if (!has_place) {
      return false;  // nor for those of lower priorities
    }
    if (takes && ((waiting != nullptr && *waiting == request.batch_key_) || waits_for_more(group, request))) {
      waiting = &request.batch_key_;
      return --max_late > 0;
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

void Dispatcher::hand_over(Worker& worker) {
  if (!waiting_.for_any().empty()) {
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

void Dispatcher::refresh() {
  if (std::ranges::none_of(groups_, [](const auto& group) { return group->dispatches(); })) {
    for (const auto& group : groups_) {
      group->end_suspension();
    }
  }
  for (const auto& group : groups_) {
    give_waiting(*group);
  }
}

void Dispatcher::give_waiting(DeviceGroup& group) {
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

bool Dispatcher::join_forming(const std::shared_ptr<Request>& request) {
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
      const Clock::time_point latest = worker->begin_by(*request);
      if (worker->size.rows >= worker->enough || options_.batching.is_full(worker->size) || latest < worker->until) {
        worker->until = std::min(worker->until, latest);
        worker->wake.notify_one();
      }
      return true;
    }
  }
  return false;
}

void Dispatcher::fail_all(RequestQueue& queue, const std::exception_ptr& error, Requests& finished,
                          Request::Outcome outcome) {
  while (!queue.empty()) {
    finished.push_back(unqueue(**queue.begin()));
    ++(outcome == Request::Outcome::failed ? counts_.failed_waiting : counts_.cancelled_waiting);
    finish(*finished.back(), outcome, error);
  }
  if (closing_ && settled()) {
    settled_.notify_all();
  }
}

void Dispatcher::fail_waiting(DeviceGroup& group, const std::exception_ptr& error, Requests& finished) {
  fail_all(group.waiting, error, finished);
  if (any_usable()) {
    if (!waiting_.for_any().empty()) {
      wake_for(**waiting_.for_any().begin());  // all others may be asleep
    }
  } else if (!opening_) {
    fail_all(waiting_.for_any(), error, finished);
  }
  queue_has_space_.notify_all();  // who waits for this device waits in vain
}

void Dispatcher::take_out(DeviceGroup& group, const std::string& reason, Requests& finished) {
  group.break_down(reason);
  fail_waiting(group, make_error(ErrorKind::device, to_string(group.device) + " was taken out of the pool: " + reason),
               finished);
  refresh();
}

void Dispatcher::finish(Request& request, Request::Outcome outcome, std::exception_ptr error) {
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

void Dispatcher::announce(Requests& finished) {
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

std::shared_ptr<DeviceSleep> Dispatcher::stop_falling(DeviceGroup& group) {
  auto sleeper = group.stay_awake();
  if (sleeper) {
    give_waiting(group);
    settled_.notify_all();
  }
  return sleeper;
}

void Dispatcher::wake_for_waiting(DeviceGroup& group) {
  if (!group.waiting.empty()) {
    begin_wake(group);
  } else if (!waiting_.for_any().empty()) {
    wake_for(**waiting_.for_any().begin());
  }
}

void Dispatcher::wake_for(const Request& request) {
  const auto takes_it = [&request](const auto& group) { return group->usable() && group->is_for(request); };
  const bool taken = std::ranges::any_of(groups_, [&](const auto& one) { return takes_it(one) && !one->asleep(); });
  const auto wakes_by_itself = [&](const auto& one) {
    return takes_it(one) && one->asleep() && one->wakes_by_itself();
  };
  const bool any = std::ranges::any_of(groups_, wakes_by_itself);
  DeviceGroup* roomiest = nullptr;
  for (const auto& group : groups_) {
    // Without any, it is a request from before the sleep.
    if (!(any ? wakes_by_itself(group) : !taken && takes_it(group) && group->asleep())) {
      continue;
    }
    if (const auto& crowd = group->sleeper()->crowd) {
      if (roomiest == nullptr || crowd->load() < roomiest->sleeper()->crowd->load()) {
        roomiest = group.get();
      }
    } else if (!taken) {
      begin_wake(*group);
    }
  }
  if (roomiest != nullptr && (!taken || worth_another(*roomiest))) {
    begin_wake(*roomiest);
  }
}

bool Dispatcher::worth_another(const DeviceGroup& group) const {
  std::size_t at_once = 0;
  std::int64_t run_ns = 0;
  std::uint64_t runs = 0;
  for (const auto& other : groups_) {
    if (!other->sleep_settled()) {
      return false;
    }
    if (other->dispatches()) {
      at_once += std::max<std::size_t>(1, other->busy());
      run_ns += other->counts.run.sum_ns();
      runs += other->counts.run.count();
    }
  }
  if (runs == 0 || at_once == 0 || group.counts.wake.count() == 0) {
    return false;
  }
  const double run = static_cast<double>(run_ns) / static_cast<double>(runs);
  const double wake = static_cast<double>(group.counts.wake.sum_ns()) / static_cast<double>(group.counts.wake.count());
  return run * static_cast<double>(waiting_.for_any().size()) / static_cast<double>(at_once) > wake;
}

void Dispatcher::begin_wake(DeviceGroup& group) {
  if (Worker* worker = group.begin_wake()) {
    worker->wake.notify_one();
  }
}

}  // namespace ortmulti
