#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/mutex.hpp"
#include "core/base/recently_used.hpp"
#include "core/policy/batch_wait.hpp"
#include "core/policy/held_rows.hpp"
#include "core/policy/idle_memory.hpp"
#include "core/policy/in_flight.hpp"
#include "core/policy/numbers.hpp"
#include "core/policy/recent_average.hpp"
#include "core/policy/rows_per_run.hpp"
#include "core/policy/run_cost.hpp"
#include "core/policy/side_by_side.hpp"
#include "core/policy/suspension.hpp"
#include "core/pool/batching.hpp"
#include "core/pool/device_stats.hpp"
#include "core/pool/padding.hpp"
#include "core/pool/request.hpp"
#include "core/pool/runner.hpp"
#include "core/pool/sleep.hpp"

namespace ortmulti {

class DeviceGroup;

inline std::exception_ptr make_error(ErrorKind kind, const std::string& message) {
  return std::make_exception_ptr(Error(kind, message));
}

/// A failed run, while its requests are tried on another device: the failure counts against the first one if all of
/// them succeed there. A request that holds it is still being tried.
struct Suspicion {
  Device device;
  bool probe = false;    ///< The device was suspended.
  bool cleared = false;  ///< The requests are to blame, or nobody knows.
  std::string error;
};

struct RunEnd {
  std::exception_ptr error;             ///< Null: it succeeded.
  std::string why_broken;               ///< Why the device can run nothing any more; empty: it can.
  SharedTime::Part time{0};             ///< The run's share of the device's time.
  std::chrono::nanoseconds whole{0};    ///< From its begin to its end.
  std::chrono::nanoseconds copying{0};  ///< Inputs into a joint run, and answers out of it.
  std::size_t rows = 0;                 ///< Of a joint run, with those that pad it.
  bool by_graph = false;                ///< The run was a CUDA graph's.
  bool unjoined = false;                ///< Each request of the joint run has to run alone.
};

/// A thread of a pool, the runner that it runs requests with, and what it has to run.
struct Worker {
  using Clock = Request::Clock;

  /// `unstarted`: it has no thread before so many runs are to be under way. `forming`: it has a batch, which requests
  /// may join until it begins. `given`: it has a batch that is complete.
  enum class State { unstarted, idle, forming, given, running, waking_device, ending };

  /// Whether it has something to run, or runs it.
  bool busy() const noexcept { return state == State::forming || state == State::given || state == State::running; }
  /// Whether its thread has something to do. A run may also be done by a caller's thread.
  bool called() const noexcept { return renews || (state != State::idle && state != State::running); }
  bool idle() const noexcept { return state == State::idle; }
  /// When a forming batch with the request has to begin, so that there is time before its deadline.
  Clock::time_point begin_by(const Request& request) const;
  /// Whether a forming batch ends its wait for a waiting request: not for one in the background, unless it is, too.
  bool yields_to(const Request& waiting) const { return waiting.priority >= 0 || batch.front()->priority < 0; }

  DeviceGroup* group = nullptr;
  std::shared_ptr<Runner> runner;  ///< Null while the device sleeps without its sessions.
  const void* session = nullptr;   ///< The runner's, which is counted.
  State state = State::idle;
  bool probing = false;              ///< It got its requests while the device was suspended.
  Requests batch;                    ///< What it has to run.
  JointSize size;                    ///< The size of the batch.
  std::size_t most = 0;              ///< Rows that a forming batch may have.
  std::size_t enough = 0;            ///< The size with which a forming batch begins at once.
  Request::Clock::time_point until;  ///< When a forming batch begins at the latest.
  Request* in_run = nullptr;         ///< The request that the runner runs.
  Request::Clock::time_point wakes;  ///< When it wakes up by itself while it is idle; far in the past: never.
  Request::Clock::time_point freed;  ///< When its last run had ended.
  BatchWait batch_wait;
  IdleThread idle_thread;
  bool renews = false;  ///< Another thread shall take the place of `thread`.
  Condition wake;
  std::jthread before;  ///< The thread that had the place, which has left it.
  std::jthread thread;
};

/// The sessions of one device in a pool: what they do, whether the device takes requests, suspension and sleep, and
/// what is counted. Not thread-safe: the pool's lock guards it. It notifies nobody and moves no request.
///
/// Suspension: a device whose runs fail several times in a row, where the same requests succeed on other devices, gets
/// no requests but for probes.
class DeviceGroup {
 public:
  using Clock = Request::Clock;
  using All = std::vector<std::unique_ptr<DeviceGroup>>;
  /// `falling_asleep`: the device waits for its runs; stay_awake() ends that. `giving_back`: it gives memory back.
  enum class SleepState { awake, falling_asleep, giving_back, asleep, waking };

  /// `all`: all groups of the pool.
  DeviceGroup(Device of, const All& all) : device(std::move(of)), all_(all) {}

  const Device device;
  RequestQueue waiting;  ///< Requests for this device alone.
  std::vector<Worker*> workers;
  std::optional<InFlight> in_flight;  ///< Requests under way at the same time; none: one for each worker.
  std::thread::id caller;             ///< On a GPU: the one thread that may run its requests itself.
  SleepGate gate;                     ///< Null: none.
  DeviceStats counts;                 ///< Its counts; the rest is in stats().
  SideBySide side_by_side;
  RecentAverage run_time;         ///< Of runs that ended by themselves, with copies and waits for the session.
  RecentAverage single_run_time;  ///< Of those of one request.
  IdleMemory idle_memory;
  SharedTime time;
  RunCost cost;                               ///< Of runs whose requests have lengths.
  RecentlyUsed<RowsPerRun> rows_per_run{64};  ///< Of runs of other requests, by their batch keys: on the CPU
  RecentlyUsed<HeldRows> held_rows{64};       ///< and on a GPU.
  std::optional<std::uint64_t> trimmed_at;    // bytes of the arenas, when the next runs were to give some back

  // Its sessions.

  /// Whether sessions were announced or added. Else a request merely named the device.
  bool known() const noexcept { return known_; }
  /// Whether it takes requests, or will.
  bool usable() const noexcept { return broken_.empty() && !removed_ && (!workers.empty() || expected_ > 0); }
  bool removed() const noexcept { return removed_; }
  /// Why no session came, or why it was taken out; empty: neither.
  const std::string& broken() const noexcept { return broken_; }
  bool is_expected() const noexcept { return expected_ > 0; }
  std::size_t busy() const noexcept { return busy_; }
  /// On a GPU one run is under way at first. See Workers::grow_from_one().
  void grow_from_one();
  /// How many runs may be under way.
  std::size_t at_once() const { return in_flight ? in_flight->limit() : workers.size(); }
  /// The rows that a run may have which begins with this request.
  std::size_t most_rows(const Request& request, const Batching& batching);
  /// Whether joint runs of requests with this key have one number of rows, as HeldRows chose.
  bool holds_rows(const std::string& batch_key, const Batching& batching);
  /// After a run lacked memory: runs of such requests are padded no more.
  void stop_holding_rows(const std::string& batch_key);
  /// To which a run of so many rows of requests with this key is padded.
  std::size_t padded_rows(const std::string& batch_key, std::size_t rows, const Batching& batching);
  /// Notes a run of requests with this key, and its part of the device's time.
  void note_rows(const std::string& batch_key, const HeldRows::Run& run, std::chrono::nanoseconds part,
                 const Batching& batching);
  DeviceStats stats() const;

  void expect(std::size_t sessions);
  /// Takes back expect(). Returns whether the device failed: it has no session, and no other one is on its way.
  bool not_coming(std::size_t sessions, const std::string& reason);
  /// Takes back expect() for all sessions that are on their way.
  void none_is_coming(const std::string& reason);
  /// `cores`: of the process.
  void add(Worker& worker, const std::optional<std::size_t>& at_first, std::size_t cores = 0);
  void break_down(const std::string& reason) { broken_ = reason; }
  /// Ends taking requests. Call forget() once its runs have ended.
  void remove();
  /// Forgets its workers; returns what it slept with, to be freed without the lock.
  std::shared_ptr<DeviceSleep> forget();
  /// Its runners, to be freed without the lock.
  std::vector<std::shared_ptr<Runner>> take_runners();
  /// Replaces the runners that its sleep freed. False if it does not wake from such a sleep.
  bool give_back_runners(const std::vector<std::shared_ptr<Runner>>& runners);

  // Its runs.

  void occupy(Worker& worker, Worker::State state);
  void release(Worker& worker);
  /// Whether the device is not awake, or has all the runs that it may have, and `more` beyond them.
  bool occupied(std::size_t more = 0) const;
  /// A worker without a thread, of the session with the fewest threads; null: there are as many as `at_once`, or all.
  Worker* next_to_start(std::size_t at_once) const;
  /// An idle worker of the session with the fewest runs; null: none.
  Worker* idle_worker() const;
  /// Where measurements choose the number of runs, has each thread that ran no session for a while replaced, but for
  /// the first one of each session; the caller notifies it. Returns whether threads were replaced a look ago and no
  /// session ran since, whose next run would free what ONNX Runtime keeps for them.
  bool renew_idle_threads();
  /// Threads beside the first one of each session for which ONNX Runtime keeps handles, as of the last look.
  std::size_t threads_with_handles() const;
  /// Whether a later look at threads may find something although no request comes.
  bool watches_threads() const;
  /// Whether something runs there, or the device gives memory back, or it wakes.
  bool active() const noexcept;

  // Suspension.

  bool suspended() const noexcept { return suspension_.active(); }
  bool dispatches() const noexcept;
  bool others_dispatch() const;
  /// Whether the request does not name another device.
  bool is_for(const Request& request) const noexcept { return !request.device || *request.device == device; }
  /// Calls `visit` for each request that waits for this device or, in `anywhere`, for any device. It keeps the order of
  /// their turns, and ends when `visit` returns false. `visit` may take requests out of their queues.
  void each_waiting(RequestQueue& anywhere, const auto& visit) ORTMULTI_UNCHECKED {
    auto own = waiting.begin();
    auto any = anywhere.begin();
    while (own != waiting.end() || any != anywhere.end()) {
      const bool is_own = any == anywhere.end() || (own != waiting.end() && (*own)->goes_before(**any));
      if (!visit(**(is_own ? own : any)++)) {
        return;
      }
    }
  }
  /// Whether the request may begin beside `others` runs. A priority below 0 leaves one of several places free.
  bool has_place_for(const Request& request, std::size_t others) const {
    return request.priority >= 0 || at_once() < 2 || others + 1 < at_once();
  }
  bool knows_run_time() const noexcept { return run_time.count() >= *numbers::queue_min_runs; }
  /// Whether the request, begun now, would be answered after its deadline.
  bool would_be_late(const Request& request) const {
    return request.deadline && knows_run_time() && Clock::now() + run_time.value() > *request.deadline;
  }
  /// Whether the device may get the request.
  bool takes(const Request& request);
  /// Whether the request may be a probe of the suspended device.
  bool probe_due(const Request& request, Clock::time_point now) const;
  void probes(Clock::time_point now) { suspension_.probes(now); }
  /// Whether another device may get the request after its device broke.
  static bool may_move(const Request& request);
  /// Whether the request may be tried on another device, if there is one.
  static bool may_try_elsewhere(const Request& request);
  /// Suspects the device after a failed run. Null if it cannot be to blame, or no other device could tell.
  std::shared_ptr<Suspicion> suspect(const Worker& worker, const RunEnd& end);
  void mark_retried(Request& request, const std::shared_ptr<Suspicion>& suspicion = nullptr);
  void decide(const Suspicion& suspicion, Clock::time_point now);
  /// Notes a run that succeeded. Returns whether it ended the suspension.
  bool note_success(const Worker& worker);
  void end_suspension() { suspension_.end(); }

  // Sleep.

  SleepState sleep_state() const noexcept { return sleep_; }
  bool asleep() const noexcept { return sleep_ == SleepState::asleep; }
  /// Whether it is awake or asleep, not in between.
  bool sleep_settled() const noexcept { return sleep_ == SleepState::awake || sleep_ == SleepState::asleep; }
  /// Whether it is falling asleep because of this request to sleep.
  bool falls_with(const std::shared_ptr<DeviceSleep>& asked) const noexcept;
  /// What it sleeps with, while it is not awake.
  const std::shared_ptr<DeviceSleep>& sleeper() const noexcept { return sleeper_; }
  /// Whether a request wakes it. Otherwise it refuses the request.
  bool wakes_by_itself() const noexcept { return sleep_ == SleepState::awake || !sleeper_ || sleeper_->auto_wake; }
  bool asked_awake() const noexcept { return asked_awake_; }
  const std::exception_ptr& wake_error() const noexcept { return wake_error_; }

  /// `asked`: what it was asked to sleep with; `sleeper`: the same behind its gate.
  void fall_asleep(const std::shared_ptr<DeviceSleep>& asked, std::shared_ptr<DeviceSleep> sleeper);
  void give_back() { sleep_ = SleepState::giving_back; }
  /// Notes that this sleeper gave everything back. Returns the one before, to be freed without the lock.
  std::shared_ptr<DeviceSleep> fell_asleep(std::shared_ptr<DeviceSleep> sleeper);
  void gave_nothing_back() { sleep_ = asked_ ? SleepState::falling_asleep : SleepState::asleep; }
  /// Ends a sleep that has given nothing back. Returns the sleeper, to be freed without the lock; null: none.
  std::shared_ptr<DeviceSleep> stay_awake();
  /// Gives the wake to a worker, which the caller notifies; null: the device is being removed.
  Worker* begin_wake();
  /// Says whether the wake under way is wanted although no request waits.
  void ask_awake(bool wanted) { asked_awake_ = wanted && sleep_ == SleepState::waking; }
  /// Returns what it slept with, to be freed without the lock.
  std::shared_ptr<DeviceSleep> woke();
  /// `error`: null if nobody wanted the wake.
  void did_not_wake(const std::exception_ptr& error);
  /// For a closed pool: what it slept with, to be freed without the lock.
  std::shared_ptr<DeviceSleep> end_sleep();

 private:
  DeviceState state() const;
  /// Whether a number of rows may be held there.
  bool may_hold_rows(const Batching& batching) const;
  /// Whether undecided suspicions could suffice to suspend it. Until then it gets no request that is not its own.
  bool awaits_verdicts();

  const All& all_;
  std::size_t busy_ = 0;
  std::size_t expected_ = 0;  // sessions on their way
  bool known_ = false;
  bool removed_ = false;
  bool grows_from_one_ = false;
  bool never_came_ = false;       // it is broken since none of its sessions came
  bool renewed_threads_ = false;  // in the last look
  std::string broken_;

  Suspension suspension_;
  std::vector<std::weak_ptr<Suspicion>> suspicions_;  // undecided

  SleepState sleep_ = SleepState::awake;
  std::shared_ptr<DeviceSleep> asked_;  // while it falls asleep
  std::shared_ptr<DeviceSleep> sleeper_;
  std::exception_ptr wake_error_;  // of the last wake, if it failed
  Clock::time_point woken_;        // when a wake was asked for
  bool asked_awake_ = false;       // by Pool::wake(), for the wake that is under way
};

}  // namespace ortmulti
