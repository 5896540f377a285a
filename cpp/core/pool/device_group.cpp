#include "core/pool/device_group.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <map>
#include <set>

#include "core/ort/library.hpp"

namespace ortmulti {
namespace {

// Kinds of errors that may be the device's; others are caused by the request alone.
constexpr std::array device_failures = {ErrorKind::fail,         ErrorKind::engine_error, ErrorKind::runtime_exception,
                                        ErrorKind::ep_fail,      ErrorKind::device_reset, ErrorKind::device,
                                        ErrorKind::out_of_memory};

}  // namespace

// --- Its sessions.

DeviceState DeviceGroup::state() const {
  if (removed_) {
    return DeviceState::removed;
  }
  if (!broken_.empty()) {
    return never_came_ ? DeviceState::failed : DeviceState::broken;
  }
  return workers.empty() ? DeviceState::starting : DeviceState::ready;
}

Worker::Clock::time_point Worker::begin_by(const Request& request) const {
  if (!request.deadline) {
    return Clock::time_point::max();
  }
  const Clock::duration left = std::chrono::duration_cast<Clock::duration>((*request.deadline - request.submitted) *
                                                                           *numbers::batch_wait_share_of_deadline);
  return *request.deadline - std::max<Clock::duration>(left, 2 * group->run_time.value());
}

DeviceStats DeviceGroup::stats() const {
  DeviceStats stats = counts;
  stats.device = device;
  stats.state = state();
  std::set<const void*> sessions;
  std::set<const void*> arenas;
  for (const Worker* worker : workers) {
    if (sessions.insert(worker->session).second && worker->runner) {
      const GraphCounts more = worker->runner->graphs();
      stats.graphs.shapes += more.shapes;
      stats.graphs.sessions += more.sessions;
      stats.graphs.bytes += more.bytes;
      stats.graphs.why_not = more.why_not.empty() ? stats.graphs.why_not : more.why_not;
      stats.graphs.why_sessions = more.why_sessions.empty() ? stats.graphs.why_sessions : more.why_sessions;
      const auto arena = worker->runner->arena();
      if (arena && arenas.insert(arena->session).second) {
        (stats.arena ? *stats.arena : stats.arena.emplace()).add(*arena);
      }
    }
  }
  stats.sessions = sessions.size();
  stats.busy = busy_;
  stats.waiting = waiting.size();
  stats.broken = broken_;
  stats.suspended = usable() ? suspension_.why() : "";
  stats.in_flight = at_once();
  stats.why_in_flight = in_flight ? in_flight->why() : "";
  stats.why_padding = cost.why();
  if (const HeldRows* const latest = held_rows.latest()) {
    stats.why_rows = latest->why();
  }
  if (const RowsPerRun* const latest = rows_per_run.latest()) {
    stats.why_rows = latest->why();
  }
  const bool awake = sleep_ == SleepState::awake || sleep_ == SleepState::falling_asleep;
  stats.level = awake ? SleepLevel::awake : sleeper_->level;
  return stats;
}

void DeviceGroup::expect(std::size_t sessions) {
  expected_ += sessions;
  known_ = true;
  removed_ = false;
  never_came_ = false;
  broken_.clear();
  suspension_.end();
}

bool DeviceGroup::not_coming(std::size_t sessions, const std::string& reason) {
  expected_ -= std::min(expected_, sessions);
  if (expected_ > 0 || !workers.empty() || removed_ || never_came_) {
    return false;
  }
  never_came_ = true;
  broken_ = reason;
  return true;
}

void DeviceGroup::none_is_coming(const std::string& reason) {
  expected_ = 0;
  if (known_ && broken_.empty()) {
    not_coming(0, reason);
  }
}

void DeviceGroup::add(Worker& worker, const std::optional<std::size_t>& at_first, std::size_t cores) {
  const bool another =
      std::ranges::any_of(workers, [&worker](const Worker* other) { return other->session == worker.session; });
  known_ = true;
  expected_ -= std::min<std::size_t>(expected_, another ? 0 : 1);
  workers.push_back(&worker);
  if (at_first && !another) {
    // Fewer runs of one thread than cores would leave some of them idle.
    in_flight.emplace(*at_first + (in_flight ? in_flight->limit() : 0), device == Device::cpu() ? cores : 0);
    if (grows_from_one_) {
      grow_from_one();
    }
  }
}

void DeviceGroup::grow_from_one() {
  grows_from_one_ = device.is_cuda();
  if (grows_from_one_ && in_flight) {
    in_flight.emplace(1, *numbers::in_flight_first, *numbers::in_flight_min_gain,
                      *numbers::in_flight_measurement_from_one);
  }
}

void DeviceGroup::remove() {
  removed_ = true;
  expected_ = 0;
  asked_awake_ = false;
}

std::shared_ptr<DeviceSleep> DeviceGroup::forget() {
  workers.clear();
  in_flight.reset();
  return end_sleep();
}

std::vector<std::shared_ptr<Runner>> DeviceGroup::take_runners() {
  std::vector<std::shared_ptr<Runner>> runners;
  runners.reserve(workers.size());
  for (Worker* worker : workers) {
    runners.push_back(std::move(worker->runner));
  }
  return runners;
}

bool DeviceGroup::give_back_runners(const std::vector<std::shared_ptr<Runner>>& runners) {
  if (sleep_ != SleepState::waking || !sleeper_->frees_runners()) {
    return false;
  }
  std::vector<Worker*> sleeping;
  std::ranges::copy_if(workers, std::back_inserter(sleeping), std::logical_not(), &Worker::runner);
  if (sleeping.size() < runners.size()) {
    throw Error(ErrorKind::fail, to_string(device) + " woke with more sessions than it had");
  }
  for (std::size_t i = 0; i < runners.size(); ++i) {
    sleeping[i]->runner = runners[i];
    sleeping[i]->session = runners[i]->session();
  }
  return true;
}

// --- Its runs.

void DeviceGroup::occupy(Worker& worker, Worker::State state) {
  busy_ += worker.busy() ? 0 : 1;
  worker.state = state;
  worker.probing = suspended();
}

void DeviceGroup::release(Worker& worker) {
  busy_ -= worker.busy() ? 1 : 0;
  worker.state = Worker::State::idle;
}

bool DeviceGroup::occupied(std::size_t more) const {
  return sleep_ != SleepState::awake || (in_flight && busy_ >= in_flight->limit() + more);
}

Worker* DeviceGroup::next_to_start(std::size_t at_once) const {
  std::map<const void*, std::size_t> started;
  std::size_t all = 0;
  for (const Worker* worker : workers) {
    const std::size_t one = worker->state == Worker::State::unstarted ? 0 : 1;
    started[worker->session] += one;
    all += one;
  }
  Worker* found = nullptr;
  for (Worker* worker : workers) {
    if (worker->state == Worker::State::unstarted &&
        (found == nullptr || started[worker->session] < started[found->session])) {
      found = worker;
    }
  }
  return all < at_once ? found : nullptr;
}

Worker* DeviceGroup::idle_worker() const {
  Worker* found = nullptr;
  std::ptrdiff_t fewest = 0;
  for (Worker* worker : workers) {
    if (!worker->idle()) {
      continue;
    }
    // A session's runs may go one behind another, and beside those of another session.
    const auto under_way = std::ranges::count_if(
        workers, [worker](const Worker* other) { return other->busy() && other->session == worker->session; });
    if (found == nullptr || under_way < fewest) {
      found = worker;
      fewest = under_way;
    }
    if (fewest == 0) {
      break;
    }
  }
  return found;
}

bool DeviceGroup::renew_idle_threads() {
  const bool renewed_before = std::exchange(renewed_threads_, false);
  bool any_ran = false;
  std::set<const void*> sessions;
  for (Worker* worker : workers) {
    const bool ran = worker->runner && worker->runner->take_session_run();
    const bool first = sessions.insert(worker->session).second;
    any_ran = any_ran || ran;
    if (in_flight && device.is_cuda() && !first && worker->idle_thread.look(ran)) {
      worker->renews = true;
      renewed_threads_ = true;
    }
  }
  return renewed_before && !any_ran;
}

std::size_t DeviceGroup::threads_with_handles() const {
  return static_cast<std::size_t>(std::ranges::count_if(
      workers, [](const Worker* worker) { return worker->runner && worker->idle_thread.watched(); }));
}

bool DeviceGroup::watches_threads() const {
  return renewed_threads_ ||
         std::ranges::any_of(workers, [](const Worker* worker) { return worker->idle_thread.watched(); });
}

bool DeviceGroup::active() const noexcept {
  return busy_ != 0 || sleep_ == SleepState::giving_back || sleep_ == SleepState::waking;
}

// --- Suspension.

bool DeviceGroup::may_move(const Request& request) { return !request.device && !request.retried_ && request.wanted(); }

bool DeviceGroup::may_try_elsewhere(const Request& request) {
  const bool callers_options = request.run_options != nullptr && !request.own_run_options;
  return may_move(request) && !callers_options;
}

bool DeviceGroup::dispatches() const noexcept {
  return usable() && !workers.empty() && !suspended() && sleep_ == SleepState::awake;
}

bool DeviceGroup::others_dispatch() const {
  return std::ranges::any_of(all_, [this](const auto& other) { return other.get() != this && other->dispatches(); });
}

bool DeviceGroup::awaits_verdicts() {
  std::erase_if(suspicions_, [](const auto& one) { return one.expired(); });
  return suspension_.is_near(suspicions_.size()) && others_dispatch();
}

bool DeviceGroup::takes(const Request& request) {
  if (request.device) {
    return true;
  }
  if (suspended()) {
    return false;
  }
  if (request.suspicion_ && request.suspicion_->device == device) {
    return !others_dispatch();
  }
  return request.retried_ || !awaits_verdicts();
}

bool DeviceGroup::probe_due(const Request& request, Clock::time_point now) const {
  return busy_ == 0 && may_try_elsewhere(request) && suspension_.probe_due(now);
}

std::shared_ptr<Suspicion> DeviceGroup::suspect(const Worker& worker, const RunEnd& end) {
  const std::optional<ErrorKind> kind = kind_of(end.error);
  if (!broken_.empty() || !end.why_broken.empty() || !others_dispatch() || !kind ||
      std::ranges::find(device_failures, *kind) == device_failures.end()) {
    return nullptr;
  }
  auto suspicion =
      std::make_shared<Suspicion>(Suspicion{.device = device, .probe = worker.probing, .error = text_of(end.error)});
  suspicions_.push_back(suspicion);
  return suspicion;
}

void DeviceGroup::mark_retried(Request& request, const std::shared_ptr<Suspicion>& suspicion) {
  ++counts.retried;
  request.retried_ = true;
  request.suspicion_ = suspicion;
}

void DeviceGroup::decide(const Suspicion& suspicion, Clock::time_point now) {
  if (suspicion.cleared || !usable()) {
    return;
  }
  if (suspended()) {
    if (suspicion.probe) {
      suspension_.probe_failed(now);
    }
  } else if (suspension_.fail(now, suspicion.error, others_dispatch())) {
    onnxruntime_log().push({ORT_LOGGING_LEVEL_WARNING, "ortmulti", "", "",
                            to_string(device) + " gets no requests until one succeeds there: " + suspension_.why()});
  }
}

bool DeviceGroup::note_success(const Worker& worker) {
  if (!suspension_.succeed(worker.probing)) {
    return false;
  }
  onnxruntime_log().push({ORT_LOGGING_LEVEL_INFO, "ortmulti", "", "", to_string(device) + " gets requests again"});
  return true;
}

// --- Sleep.

bool DeviceGroup::falls_with(const std::shared_ptr<DeviceSleep>& asked) const noexcept {
  return sleep_ == SleepState::falling_asleep && asked_ == asked;
}

void DeviceGroup::fall_asleep(const std::shared_ptr<DeviceSleep>& asked, std::shared_ptr<DeviceSleep> sleeper) {
  sleep_ = SleepState::falling_asleep;
  asked_ = asked;
  sleeper_ = std::move(sleeper);
}

std::shared_ptr<DeviceSleep> DeviceGroup::fell_asleep(std::shared_ptr<DeviceSleep> sleeper) {
  sleep_ = SleepState::asleep;
  counts.sleeps += asked_ ? 1 : 0;  // else it was asleep before
  asked_.reset();
  return std::exchange(sleeper_, std::move(sleeper));
}

std::shared_ptr<DeviceSleep> DeviceGroup::stay_awake() {
  return sleep_ == SleepState::falling_asleep ? end_sleep() : nullptr;
}

Worker* DeviceGroup::begin_wake() {
  if (workers.empty()) {
    return nullptr;
  }
  sleep_ = SleepState::waking;
  wake_error_ = nullptr;
  woken_ = Clock::now();
  workers.front()->state = Worker::State::waking_device;
  return workers.front();
}

std::shared_ptr<DeviceSleep> DeviceGroup::woke() {
  ++counts.wakes;
  counts.wake.record((Clock::now() - woken_).count());
  asked_awake_ = false;
  return end_sleep();
}

void DeviceGroup::did_not_wake(const std::exception_ptr& error) {
  sleep_ = SleepState::asleep;
  asked_awake_ = false;
  wake_error_ = error;
}

std::shared_ptr<DeviceSleep> DeviceGroup::end_sleep() {
  sleep_ = SleepState::awake;
  asked_.reset();  // `sleeper_` holds it, too
  return std::move(sleeper_);
}

}  // namespace ortmulti
