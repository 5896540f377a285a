#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/pool/batch.hpp"
#include "core/pool/device_stats.hpp"
#include "core/pool/in_flight.hpp"
#include "core/pool/request.hpp"
#include "core/pool/runner.hpp"
#include "core/pool/sleep.hpp"
#include "core/pool/surplus.hpp"

namespace ortmulti {

class DeviceGroup;

inline std::exception_ptr make_error(ErrorKind kind, const std::string& message) {
  return std::make_exception_ptr(Error(kind, message));
}

/// A failed run, while its requests are tried on another device: the failure counts against the first one if all of
/// them succeed there. Who holds it is undecided.
struct Suspicion {
  Device device;
  bool probe = false;    ///< The device was suspended.
  bool cleared = false;  ///< The requests are to blame, or nobody knows.
  std::string error;
};

struct RunEnd {
  std::exception_ptr error;  ///< Null: it succeeded.
  std::string why_broken;    ///< Why the device can run nothing any more; empty: it can.
  SharedTime::Part time{0};  ///< Its run's part of the device's.
  bool unjoined = false;     ///< Of a joint run: each of its requests is to be run alone.
};

/// A thread of a pool, the runner that it runs requests with, and what it has to run.
struct Worker {
  /// `forming`: it has a batch that others may join until it begins; `given`: one that they may not join.
  enum class Does { nothing, forming, given, runs, wakes_device, ends };

  /// Whether it has something to run, or runs it.
  bool busy() const noexcept { return does == Does::forming || does == Does::given || does == Does::runs; }
  /// Whether its thread is to go on. Runs may also be done in a caller's thread.
  bool called() const noexcept { return does != Does::nothing && does != Does::runs; }
  bool idle() const noexcept { return does == Does::nothing; }

  DeviceGroup* group = nullptr;
  std::shared_ptr<Runner> runner;  ///< Null while the device sleeps without its sessions.
  const void* session = nullptr;   ///< The runner's, to be counted.
  Does does = Does::nothing;
  bool probing = false;              ///< It got its requests while the device was suspended.
  Requests batch;                    ///< What it has to run.
  JointSize size;                    ///< The size of that.
  std::size_t enough = 0;            ///< The size with which a forming batch begins at once.
  Request* in_run = nullptr;         ///< What the runner has.
  Request::Clock::time_point wakes;  ///< By itself, while it is idle; far in the past: it does not.
  Request::Clock::time_point freed;  ///< When its last run had ended.
  Grace grace;
  std::condition_variable wake;
  std::thread thread;
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
  static constexpr std::uint64_t least_runs = 8;  ///< To know how long one takes.
  /// A device that falls asleep waits for its runs, which can be taken back. One that gives back was asleep or falling.
  enum class Rest { awake, falling_asleep, giving_back, asleep, waking };

  /// `all`: the pool's, with this one.
  DeviceGroup(Device of, const All& all) : device(std::move(of)), all_(all) {}

  const Device device;
  RequestQueue waiting;  ///< For this device alone.
  std::vector<Worker*> workers;
  std::optional<InFlight> in_flight;     ///< Requests under way at the same time; none: one for each worker.
  std::thread::id caller;                ///< Of a GPU: the one thread whose own runs are done by itself.
  SleepGate gate;                        ///< Null: none.
  DeviceStats counts;                    ///< Its counts; the rest is in stats().
  std::chrono::nanoseconds run_time{0};  ///< Of late, with copies and waits for the session. See knows_run_time().
  Surplus surplus;
  SharedTime time;
  RunCost cost;                             ///< Of runs whose requests have lengths.
  std::optional<std::uint64_t> trimmed_at;  // bytes of the arenas, when the next runs were to give some back

  // Its sessions.

  /// Whether it is said that there will be sessions; else somebody only asked for them.
  bool known() const noexcept { return known_; }
  /// Whether it takes requests, or will.
  bool usable() const noexcept { return broken_.empty() && !removed_ && (!workers.empty() || expected_ > 0); }
  bool removed() const noexcept { return removed_; }
  /// Why no session came, or why it was taken out; empty: neither.
  const std::string& broken() const noexcept { return broken_; }
  bool is_expected() const noexcept { return expected_ > 0; }
  std::size_t busy() const noexcept { return busy_; }
  /// How many runs may be under way.
  std::size_t at_once() const { return in_flight ? in_flight->limit() : workers.size(); }
  DeviceStats stats() const;

  void expect(std::size_t sessions);
  /// Returns whether it failed with this: none has come, and no other one is on its way.
  bool not_coming(std::size_t sessions, const std::string& reason);
  /// The same for all that are on their way.
  void none_is_coming(const std::string& reason);
  void add(Worker& worker, const std::optional<std::size_t>& at_first);
  void break_down(const std::string& reason) { broken_ = reason; }
  /// It takes no requests from now on; forget() is the end of that.
  void remove();
  /// Forgets its workers; returns what it slept with, to be freed without the lock.
  std::shared_ptr<DeviceSleep> forget();
  /// Its runners, to be freed without the lock.
  std::vector<std::shared_ptr<Runner>> take_runners();
  /// Puts these in the places of those that its sleep freed. False where it does not wake from such a sleep.
  bool give_back_runners(const std::vector<std::shared_ptr<Runner>>& runners);

  // Its runs.

  void occupy(Worker& worker, Worker::Does does);
  void release(Worker& worker);
  /// Whether as many requests are under way as may be, or `more` than those, or the device is not awake.
  bool occupied(std::size_t more = 0) const;
  /// An idle one, of the session with the fewest runs; null: none.
  Worker* idle_worker() const;
  /// Whether something runs there, or memory is given back or had again.
  bool active() const noexcept;

  // Suspension.

  bool suspended() const noexcept { return !suspended_.empty(); }
  bool dispatches() const noexcept;
  bool others_dispatch() const;
  /// Whether the request does not name another device.
  bool is_for(const Request& request) const noexcept { return !request.device || *request.device == device; }
  /// Calls `visit` with what waits for it, or in `anywhere` for any device, in the order of their turns, until that
  /// returns false. It may take them out of their queues.
  template <typename Visit>
  void each_waiting(RequestQueue& anywhere, const Visit& visit) {
    auto own = waiting.begin();
    auto any = anywhere.begin();
    while (own != waiting.end() || any != anywhere.end()) {
      const bool is_own = any == anywhere.end() || (own != waiting.end() && (*own)->goes_before(**any));
      if (!visit(**(is_own ? own : any)++)) {
        return;
      }
    }
  }
  /// Whether one may begin there, where `others` run: one of a priority below 0 leaves a place free, if there are two.
  bool has_place_for(const Request& request, std::size_t others) const {
    return request.priority >= 0 || at_once() < 2 || others + 1 < at_once();
  }
  bool knows_run_time() const noexcept { return counts.run.count() >= least_runs; }
  /// Whether the request, begun now, would be answered after its deadline.
  bool would_be_late(const Request& request) const {
    return request.deadline && knows_run_time() && Clock::now() + run_time > *request.deadline;
  }
  /// Whether it may get such a request.
  bool takes(const Request& request);
  /// While it is suspended: whether the request may be a probe.
  bool probe_due(const Request& request, Clock::time_point now) const;
  void probes(Clock::time_point now) { next_probe_ = now + pause_; }
  /// Whether another device may get the request, after the one that has it broke.
  static bool may_move(const Request& request);
  /// Whether the request could be tried on another device, if one is there.
  static bool may_try_elsewhere(const Request& request);
  /// After a failed run: null where the device is not to blame, or where no other one could tell.
  std::shared_ptr<Suspicion> suspect(const Worker& worker, const RunEnd& end);
  void hold(Request& request, const std::shared_ptr<Suspicion>& suspicion = nullptr);
  void decide(const Suspicion& suspicion, Clock::time_point now);
  /// After a run that succeeded: whether it ended the suspension.
  bool note_success(const Worker& worker);
  void end_suspension() { suspended_.clear(); }

  // Sleep.

  Rest rest() const noexcept { return rest_; }
  bool asleep() const noexcept { return rest_ == Rest::asleep; }
  /// Whether it is awake or asleep, and not between.
  bool rests() const noexcept { return rest_ == Rest::awake || rest_ == Rest::asleep; }
  /// Whether it falls asleep since it was asked to with this one.
  bool falls_with(const std::shared_ptr<DeviceSleep>& asked) const noexcept;
  /// What it sleeps with, while it is not awake.
  const std::shared_ptr<DeviceSleep>& sleeper() const noexcept { return sleeper_; }
  /// Whether it wakes for a request. Otherwise it refuses it.
  bool wakes_by_itself() const noexcept { return rest_ == Rest::awake || !sleeper_ || sleeper_->auto_wake; }
  bool asked_awake() const noexcept { return asked_awake_; }
  const std::exception_ptr& wake_error() const noexcept { return wake_error_; }

  /// `asked`: what it was asked to sleep with; `sleeper`: the same behind its gate.
  void fall_asleep(const std::shared_ptr<DeviceSleep>& asked, std::shared_ptr<DeviceSleep> sleeper);
  void give_back() { rest_ = Rest::giving_back; }
  /// It gave everything back with this one. Returns what it slept with before, to be freed without the lock.
  std::shared_ptr<DeviceSleep> fell_asleep(std::shared_ptr<DeviceSleep> sleeper);
  void gave_nothing_back() { rest_ = asked_ ? Rest::falling_asleep : Rest::asleep; }
  /// Ends a sleep that has not given anything back: the sleeper, to be freed without the lock. Null: there is none.
  std::shared_ptr<DeviceSleep> stay_awake();
  /// Has a worker wake it, which is to be notified; null: it is being removed.
  Worker* begin_wake();
  /// The wake that is under way, if any, is wanted though no request waits for it.
  void ask_awake(bool wanted) { asked_awake_ = wanted && rest_ == Rest::waking; }
  /// Returns what it slept with, to be freed without the lock.
  std::shared_ptr<DeviceSleep> woke();
  /// `error`: null where nobody wanted it.
  void did_not_wake(const std::exception_ptr& error);
  /// For a closed pool: what it slept with, to be freed without the lock.
  std::shared_ptr<DeviceSleep> end_sleep();

 private:
  DeviceState state() const;
  /// Whether it waits for verdicts: one failure more, if they go against it, would be in vain.
  bool held_back();

  const All& all_;
  std::size_t busy_ = 0;
  std::size_t expected_ = 0;  // sessions on their way
  bool known_ = false;
  bool removed_ = false;
  bool never_came_ = false;  // it is broken since none of its sessions came
  std::string broken_;

  std::string suspended_;                             // why; empty: it is not
  std::size_t failures_ = 0;                          // in a row, that other devices did not share
  std::vector<std::weak_ptr<Suspicion>> suspicions_;  // undecided
  Clock::duration pause_{};                           // from one probe to the next
  Clock::time_point next_probe_;

  Rest rest_ = Rest::awake;
  std::shared_ptr<DeviceSleep> asked_;  // while it falls asleep
  std::shared_ptr<DeviceSleep> sleeper_;
  std::exception_ptr wake_error_;  // of the last wake, if it failed
  Clock::time_point woken_;        // when a wake was asked for
  bool asked_awake_ = false;       // by Pool::wake(), for the wake that is under way
};

}  // namespace ortmulti
