#include <algorithm>
#include <utility>

#include "core/pool/device_group.hpp"
#include "core/pool/pool.hpp"

namespace ortmulti {
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

bool Pool::full() const { return options_.max_waiting && waiting_.size() >= *options_.max_waiting; }

bool Pool::any_usable() const {
  return std::ranges::any_of(groups_, [](const auto& group) { return group->usable(); });
}

bool Pool::settled() const {
  return waiting_.size() == 0 && std::ranges::none_of(groups_, [](const auto& group) { return group->active(); });
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
  worker.enough = worker.batch_wait.ends_delays() ? worker.batch_wait.enough(0, worker.most) : worker.most;
  const bool wakes_in_time =
      worker.wakes != Clock::time_point() && worker.wakes <= request->submitted + options_.batching.max_delay;
  if (!forming || !wakes_in_time || worker.size.rows >= worker.enough) {
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
  return request.device ? group_of(*request.device).waiting : waiting_.for_any();
}

void Pool::enqueue(const std::shared_ptr<Request>& request) {
  waiting_.insert(queue_of(*request), request);
  wake_for(*request);
}

std::shared_ptr<Request> Pool::unqueue(Request& request) {
  queue_has_space_.notify_one();
  return waiting_.take(queue_of(request), request);
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

std::shared_ptr<Request> Pool::next_for(DeviceGroup& group, std::size_t others) {
  if (Request* const lower = waiting_.turn_of_lower(group.waiting); lower != nullptr && group.takes(*lower)) {
    return unqueue(*lower);
  }
  Request* next = nullptr;
  Request* late = nullptr;  // for nothing: requests after it might become late because of it
  std::size_t max_late = 1000;
  group.each_waiting(waiting_.for_any(), [&](Request& request) ORTMULTI_REQUIRES(mutex_) {
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

void Pool::hand_over(Worker& worker) {
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

}  // namespace ortmulti
