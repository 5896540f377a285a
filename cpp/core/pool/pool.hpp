#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/cpu_affinity.hpp"
#include "core/base/device.hpp"
#include "core/base/memory_keeper.hpp"
#include "core/pool/batch.hpp"
#include "core/pool/device_stats.hpp"
#include "core/pool/joining.hpp"
#include "core/pool/request.hpp"
#include "core/pool/runner.hpp"
#include "core/pool/sleep.hpp"

namespace ortmulti {

class DeviceGroup;
struct RunEnd;
struct Suspicion;
struct Worker;

struct PoolStats {
  std::vector<DeviceStats> devices;
  std::size_t waiting = 0;    ///< Requests that any device may take.
  std::string why_unbatched;  ///< Why requests like the last that ran alone were not joined with others.
  std::string why_unlike;     ///< An example of the `unlike` ones.

  // Counted. for_each_count() has them all.
  std::uint64_t rejected = 0;
  std::uint64_t cancelled_waiting = 0;  ///< Never begun.
  std::uint64_t failed_waiting = 0;     ///< Never begun: for a deadline, the last device, or a higher priority.
  std::uint64_t unbatched = 0;          ///< Joint runs that ended joining: of the model, or of requests like theirs.
  std::uint64_t apart = 0;              ///< Requests that ran alone: for their outputs, or since their caller's fail.
  std::uint64_t audits = 0;             ///< Requests of joint runs that were run alone too, and compared.
  std::uint64_t audit_differences = 0;  ///< Of these, those with another answer.
  std::uint64_t audit_ns = 0;           ///< How long these runs took.
  std::uint64_t unlike = 0;             ///< Requests that ran alone while only unlike ones waited to be batched.

  /// As DeviceStats::for_each_count().
  template <typename Each>
  static void for_each_count(const Each& each) {
    each("rejected", &PoolStats::rejected);
    each("cancelled_waiting", &PoolStats::cancelled_waiting);
    each("failed_waiting", &PoolStats::failed_waiting);
    each("unbatched", &PoolStats::unbatched);
    each("apart", &PoolStats::apart);
    each("audits", &PoolStats::audits);
    each("audit_differences", &PoolStats::audit_differences);
    each("audit_ns", &PoolStats::audit_ns);
    each("unlike", &PoolStats::unlike);
  }

  /// Adds what another pool did and does.
  void add(const PoolStats& more);
};

/// One queue in front of several sessions, each with a thread of its own. Every request that was accepted is answered,
/// failed or cancelled exactly once. May be used from any thread; throws Error, with ErrorKind::closed after close()
/// and ErrorKind::forked in a child of the process that made it.
class Pool : public KeepsMemory, NonCopyable {
 public:
  using Clock = Request::Clock;

  struct Options {
    std::optional<std::size_t> max_waiting;  ///< Requests that may wait; by default any number.
    Batching batching;
    /// Tells when a suspended device is to be probed, and how long a batch's run took.
    std::function<Clock::time_point()> now = Clock::now;
    /// That the process may use: of which measured numbers of runs under way take three quarters at most.
    std::size_t cores = static_cast<std::size_t>(usable_cores());
    /// Where no request was half as large for so long, the memory of the largest is given back; none: never.
    std::optional<std::chrono::nanoseconds> trim_after = std::nullopt;
    /// Refuses a request at once where, by the time that runs took, it will not be answered before its deadline.
    bool reject_late = false;
  };

  /// A pool without sessions; to be closed before the last reference goes, or it closes itself, which waits.
  static std::shared_ptr<Pool> make(const Options& options);

  /// Adds runners, which take requests from now on: all of them or, where it throws, none. Throws Error with
  /// ErrorKind::device where a runner's device was removed, and with ErrorKind::fail where a thread cannot be started.
  /// `at_first`: how many of them run at the same time at first; how many later is chosen by measurement, see InFlight.
  /// No number: all of them. Of a device that wakes they take the places of those that were freed.
  void add(const std::vector<std::shared_ptr<Runner>>& runners, std::optional<std::size_t> at_first = std::nullopt);

  /// Says that so many sessions on a device are on their way: requests for it wait. It may have failed or been removed.
  void expect(const Device& device, std::size_t sessions);
  /// Takes back what expect() said. If the device has no other sessions, what waits for it alone fails with this error,
  /// as does all that waits where no other device is left.
  void not_coming(const Device& device, std::size_t sessions, const std::exception_ptr& error);
  /// While opening, devices may come that are not known yet: requests for any device wait.
  void set_opening(bool opening);
  /// Everything that waits, or is asked for later, fails with this error.
  void fail(const std::exception_ptr& error);
  /// Takes a device out: it gets nothing more, what waits for it alone fails, what runs there is answered, and then its
  /// threads and runners are freed. Waits until then, but no longer than `until`: false where it is to be called again.
  bool remove(const Device& device, Clock::time_point until);
  /// Puts a device to sleep: it gets nothing more, what runs there is answered, and then what was `asked` gives back
  /// what it has. Requests wait, and wake it: those for this device, and the others where none is awake. A device that
  /// sleeps may give back its sessions, too. A wake, or another sleep, ends before. Waits no longer than `until`: false
  /// where it is to be called again with the same one, or stay_awake(). Throws Error, with the device as it was.
  bool sleep(const Device& device, const std::shared_ptr<DeviceSleep>& asked, Clock::time_point until);
  /// What the device sleeps with from now on; its sessions may come later. In the threads of callers nothing runs there
  /// any more: memory is scarce.
  void set_gate(const Device& device, SleepGate gate);
  /// Takes back a sleep() that returned false.
  void stay_awake(const Device& device, const std::shared_ptr<DeviceSleep>& asked);
  /// Begins to wake the device, in a thread of the pool, if it is asleep.
  void wake(const Device& device);
  /// True once it is awake; throws the error of its wake. One that fell asleep again is woken again. False where
  /// `until` comes first.
  bool wait_until_awake(const Device& device, Clock::time_point until);
  PoolActivity activity(const Device& device) const;
  /// Counts what another pool did, and still does, as this one's. Whatever that one continues is closed.
  void continue_from(const std::shared_ptr<Pool>& before);

  // Where a request names no device, and its inputs lie on one, it goes there: they need not be copied.

  /// Runs the request in this thread if a session is idle, and returns whether it did: the answer, or error, is in the
  /// request, and no receiver gets it. False where all are busy, where there is a deadline or batching, where a
  /// GPU already does so for another thread, or where the device broke under another request's run: then the request is
  /// to be submitted. `interruptible`: nor where runs of late took so long that this thread should see signals sooner.
  bool run_here(Request& request, bool interruptible = false);

  /// Gives the request to an idle session, or queues it. With a full queue waits until then at most; returns false,
  /// with nothing done, if it stays full. No time: the request is queued however many wait.
  bool submit(const std::shared_ptr<Request>& request, const std::optional<Clock::time_point>& wait_until);

  /// Has requests of different lengths run together from now on.
  void set_padding(std::shared_ptr<const Padding> padding);

  // As those of Joining.
  void set_outputs(Joining::Outputs outputs);
  void set_apart_inputs(Joining::Apart inputs);

  /// Counts a request that was refused since the queue was full, and returns the error that says so.
  Error reject();

  /// Takes a waiting request out of the queue, or asks that a running one ends; its run's result is not wanted any
  /// more. Returns false where it had ended.
  bool cancel(const std::shared_ptr<Request>& request);

  PoolStats stats();

  /// The runners of devices that take requests, as many as run at the same time, to be warmed up; none after close().
  std::vector<std::shared_ptr<Runner>> runners() const;
  /// Frees the CUDA graphs that were made beside the device's sessions. Returns whether there were any.
  bool drop_graphs(const Device& device) const;
  std::vector<std::shared_ptr<Session>> sessions(const Device& device) const;

  /// Bytes of the device's memory that its sessions' arenas and its CUDA graphs take; none where a session cannot tell.
  std::optional<std::uint64_t> memory_of_runs(const Device& device) const;
  /// Gives back memory of the device that no run needs now, beside runs that are under way; with `graphs`, first what
  /// drop_graphs() frees. A device that sleeps gives back what its sessions keep for runs. Does nothing after close().
  void give_back(const Device& device, bool graphs) override;
  /// Gives back what Options::trim_after says.
  bool give_back_surplus() override;
  /// Bytes in an arena, below which they are not worth it.
  static constexpr std::uint64_t least_surplus = std::uint64_t{16} << 20U;

  /// Accepts nothing more, answers what was accepted, or with `cancel_waiting` cancels what has not begun, and frees
  /// the sessions' threads and runners. Returns true when all that is done; calling it again waits for the same.
  /// Returns false if requests still run after `patience`: the pool then accepts nothing, and another call has to end
  /// it.
  bool close(bool cancel_waiting, std::optional<std::chrono::milliseconds> patience = std::nullopt);
  bool closed() const;

  /// For a thread that must not wait for a pool, such as a worker of it: while one lives, pools whose last reference
  /// goes in the thread are closed in another one.
  class NoWaiting : NonCopyable {
   public:
    NoWaiting();
    ~NoWaiting();

   private:
    const bool before_;
  };

  explicit Pool(const Options& options);  // for make()
  ~Pool() override;

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Timers = std::multimap<Clock::time_point, std::weak_ptr<Request>>;

  void check_process() const;
  /// The pool's lock. Throws Error in a forked child.
  Lock enter() const;
  static void set_asked(Request& request);
  void prefer_device_of_inputs(Request& request) const;
  // This and every function below needs mutex_ held.
  void check_open() const;
  void check_accepted(const Request& request) const;
  DeviceGroup* find_group(const Device& device) const;
  DeviceGroup& group_of(const Device& device);
  void fail_all(RequestQueue& queue, const std::exception_ptr& error, Requests& finished,
                Request::Outcome outcome = Request::Outcome::failed);
  void fail_waiting(DeviceGroup& group, const std::exception_ptr& error, Requests& finished);
  /// Throws Error for a device without a session.
  DeviceGroup& known_group(const Device& device);
  /// Where only devices that sleep could take the request: wakes these.
  void wake_for(const Request& request);
  /// Whether what waits would take longer than to wake one more of the devices.
  bool worth_another(const DeviceGroup& group) const;
  static void begin_wake(DeviceGroup& group);
  void wake_for_waiting(DeviceGroup& group);
  void check_may_sleep(const DeviceGroup& group) const;
  /// Ends a sleep that has not given anything back; returns its sleeper, to be freed without the lock.
  std::shared_ptr<DeviceSleep> stop_falling(DeviceGroup& group);
  void wake_up(Worker& worker, Lock& lock);
  /// Without what it continues.
  PoolStats own_stats() const;
  std::vector<std::shared_ptr<Runner>> runners_on(const Device& device) const;
  /// Without the lock. The runners are the group's; their buffers are given back in any case.
  void give_back_from(DeviceGroup& group, const std::vector<std::shared_ptr<Runner>>& runners, bool graphs,
                      std::optional<Session::Shrink> arenas);
  Worker* idle_worker(const Request& request);
  /// Ends suspensions where no other device is left, and gives idle sessions what they may take now.
  void refresh();
  void give_waiting(DeviceGroup& group);
  bool full() const;
  /// After answers from the worker: has the number of requests under way be chosen. Releases the mutex meanwhile.
  void adapt(Worker& worker, std::size_t answers, Lock& lock);
  RequestQueue& queue_of(const Request& request);
  void assign(Worker& worker, const std::shared_ptr<Request>& request) const;
  /// Whether it may be part of a joint run.
  bool joins_others(const Request& request) const;
  void give(Worker& worker, const std::shared_ptr<Request>& request);
  bool probe_due(const DeviceGroup& group, const Request& request) const;
  void note_probe(const Worker& worker, const Request& request) const;
  void place(const std::shared_ptr<Request>& request);
  void enqueue(const std::shared_ptr<Request>& request);
  std::shared_ptr<Request> unqueue(Request& request);
  /// Out of its queue, or of a batch that has not begun; null where it runs or has ended.
  std::shared_ptr<Request> take_back(Request& request);
  /// Where several priorities wait, those below the highest one begin once in so many times, each in turn.
  static constexpr int lower_every = 16;
  /// The request that is to begin for that reason, still in its queue; null: none now.
  Request* turn_of_lower(DeviceGroup& group);
  /// An error where the request, to begin after those before it, is to be refused since it would be answered after its
  /// deadline; else null.
  std::exception_ptr why_late(const Request& request) const;
  /// Has the last request of a lower priority fail, if there is one.
  bool make_room_for(const Request& request, Requests& finished);
  /// The first waiting request that the group may take where `others` run, out of its queue; null if there is none.
  std::shared_ptr<Request> next_for(DeviceGroup& group, std::size_t others);
  /// After a run: the worker gets the next request, or is idle.
  void hand_over(Worker& worker);
  bool settled() const;
  bool any_usable() const;

  void work(Worker& worker);
  bool join_forming(const std::shared_ptr<Request>& request);
  void gather(Worker& worker, bool at_once, Lock& lock);
  /// Has waiting requests join the forming batch.
  void take_waiting(Worker& worker);
  /// `at_once`: it got its requests as its last run ended.
  void run_batch(Worker& worker, bool at_once, Lock& lock);
  RunEnd run_one(Worker& worker, Request& request, Lock& lock) const;
  RunEnd run_joint(Worker& worker, const Requests& batch, Lock& lock);
  struct Audit {
    std::string difference;  ///< From the request's answer alone; empty: by rounding at most.
    bool by_size = false;    ///< It comes from the run's size, not from other requests.
    std::chrono::nanoseconds time{0};
  };
  /// Runs a request of a joint run alone, and compares. Without the lock.
  Audit audit(Worker& worker, const std::shared_ptr<Request>& request, const JointSize& size,
              const std::vector<JointSize>& sizes) const;
  /// What audits of a joint run mean for it and for later ones.
  void note_audits(const Joining::Audit& done, const std::vector<Audit>& found, RunEnd& end);
  /// Runs requests of a joint run that failed once more: halves of them, down to single ones.
  void run_again(Worker& worker, Requests batch, const RunEnd& joint, Requests& finished, Lock& lock);
  /// Says in the log, and in the statistics, that requests are not joined any more; of which ones `joining_` knows.
  void note_stop(const std::string& why, OrtLoggingLevel level);
  /// What became of a run; false where the request is to be tried elsewhere.
  bool end_run(Worker& worker, Request& request, const RunEnd& end, Requests& finished);
  void conclude(Worker& worker, const std::shared_ptr<Request>& request, const RunEnd& end, Requests& finished);
  static bool nobody_waits(const Requests& batch);
  void end_early(Request& request);
  void take_out(DeviceGroup& group, const std::string& reason, Requests& finished);
  void finish(Request& request, Request::Outcome outcome, std::exception_ptr error = nullptr);
  static void announce(Requests& finished);

  void start_timer(const Request& request);
  void keep_deadlines();
  std::exception_ptr deadline_error(const Request& request, const std::string& what) const;

  Options options_;  // all but its padding stay
  const unsigned generation_;

  mutable std::mutex mutex_;
  std::condition_variable queue_has_space_;  // in the queue
  std::condition_variable settled_;          // nothing waits and nothing runs
  std::vector<std::unique_ptr<DeviceGroup>> groups_;
  std::vector<std::unique_ptr<Worker>> workers_;
  RequestQueue anywhere_;
  std::size_t waiting_ = 0;      // in all queues
  std::size_t prioritized_ = 0;  // of these, with a priority
  int since_lower_ = 0;          // how many began of the highest priority, while others waited
  int last_lower_ = 0;           // the priority that last had its turn then
  std::uint64_t next_number_ = 0;
  std::size_t next_group_ = 0;  // where the search for an idle session begins
  Joining joining_;
  PoolStats counts_;  // without those of devices
  bool closing_ = false;
  bool opening_ = false;
  std::exception_ptr failure_;    // of fail()
  std::shared_ptr<Pool> before_;  // whose work is counted here
  PoolStats done_before_;         // what pools before that one did

  std::atomic<bool> has_gpus_{false};  // or had
  Clock::time_point looked_;           // at what may be given back

  Timers timers_;
  std::condition_variable timers_changed_;
  Clock::time_point timer_wakes_;  // when the thread looks at the timers again by itself
  std::thread timer_;
  bool timer_stops_ = false;

  std::mutex close_mutex_;
  bool freed_ = false;
};

}  // namespace ortmulti
