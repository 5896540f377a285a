#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/cpu_affinity.hpp"
#include "core/base/device.hpp"
#include "core/base/memory_keeper.hpp"
#include "core/base/mutex.hpp"
#include "core/policy/joining.hpp"
#include "core/policy/numbers.hpp"
#include "core/policy/residency_policy.hpp"
#include "core/pool/batch.hpp"
#include "core/pool/deadlines.hpp"
#include "core/pool/device_stats.hpp"
#include "core/pool/request.hpp"
#include "core/pool/runner.hpp"
#include "core/pool/sleep.hpp"
#include "core/pool/waiting.hpp"

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

  // Counts, all of which for_each_count() visits.
  std::uint64_t rejected = 0;
  std::uint64_t cancelled_waiting = 0;  ///< Never begun.
  std::uint64_t failed_waiting =
      0;                        ///< Never begun: deadline passed, last device gone, or replaced by a higher priority.
  std::uint64_t unbatched = 0;  ///< How often joining ended: for the model, or for requests of one kind.
  std::uint64_t apart = 0;      ///< Requests that ran alone: for their outputs, or since their caller's requests fail.
  std::uint64_t audits = 0;     ///< Requests of joint runs that were run alone too, and compared.
  std::uint64_t audit_differences = 0;  ///< Audits with another answer.
  std::uint64_t audit_ns = 0;           ///< How long these runs took.
  std::uint64_t unlike = 0;             ///< Requests that ran alone while only unlike ones waited to be batched.

  /// As DeviceStats::for_each_count().
  static void for_each_count(const auto& each) {
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

  /// Adds the counts of another pool.
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
    /// The clock for probes of suspended devices, and for runs of batches.
    std::function<Clock::time_point()> now = Clock::now;
    /// Cores that the process may use. Measured numbers of runs under way take at most three quarters of them.
    std::size_t cores = static_cast<std::size_t>(usable_cores());
    /// After so long without a request half as large as the largest, its memory is given back; none: never.
    std::optional<std::chrono::nanoseconds> trim_after = std::nullopt;
    /// Refuses a request at once if, going by past runs, it will miss its deadline.
    bool reject_late = false;
    /// With batching, runs on the CPU that are shorter than this are their callers'.
    std::chrono::nanoseconds hand_over = *numbers::queue_hand_over;
  };

  /// A pool without sessions; to be closed before the last reference goes, or it closes itself, which waits.
  static std::shared_ptr<Pool> make(const Options& options);

  /// Adds runners, which take requests from now on. If it throws, it adds none. Throws Error with ErrorKind::device if
  /// a runner's device was removed, and with ErrorKind::fail if a thread cannot start. `at_first`: how many of them run
  /// at the same time at first; later measurements choose, see InFlight. No number: all of them run. On a device that
  /// wakes they replace the runners that were freed.
  void add(const std::vector<std::shared_ptr<Runner>>& runners, std::optional<std::size_t> at_first = std::nullopt);

  /// Says that so many sessions on a device are on their way, so that requests for it wait. The device may have failed
  /// or been removed before.
  void expect(const Device& device, std::size_t sessions);
  /// Takes back expect(). If the device has no other sessions, requests for it alone fail with this error. If no other
  /// device is left, all waiting requests do.
  void not_coming(const Device& device, std::size_t sessions, const std::exception_ptr& error);
  /// While opening, unknown devices may still come, and requests for any device wait.
  void set_opening(bool opening);
  /// Fails all requests, now and later, with this error.
  void fail(const std::exception_ptr& error);
  /// Removes a device. It gets no more requests, those that wait for it alone fail, and those that run there are
  /// answered. Then its threads and runners are freed. Waits for that until `until`; false: call it again.
  bool remove(const Device& device, Clock::time_point until);
  /// Puts a device to sleep. It gets no more requests, runs there are answered, and then `asked` gives memory back. A
  /// request for this device wakes it, as does one for any device if none is awake. A sleeping device may give back its
  /// sessions, too. A wake or another sleep ends first. Waits until `until`; false: call it again with the same
  /// `asked`, or call stay_awake(). If it throws Error, the device is as it was.
  bool sleep(const Device& device, const std::shared_ptr<DeviceSleep>& asked, Clock::time_point until);
  /// Sets what the device's sleeps go through; its sessions may come later. Callers' threads run nothing there any
  /// more, since memory is scarce.
  void set_gate(const Device& device, SleepGate gate);
  /// Takes back a sleep() that returned false.
  void stay_awake(const Device& device, const std::shared_ptr<DeviceSleep>& asked);
  /// Begins to wake the device, in a thread of the pool, if it is asleep.
  void wake(const Device& device);
  /// Waits until the device is awake; throws the error of its wake. A device that fell asleep again is woken again.
  /// False if `until` comes first.
  bool wait_until_awake(const Device& device, Clock::time_point until);
  PoolActivity activity(const Device& device) const;
  /// Counts what another pool did, and still does, as this one's. The pool that the other one continues is closed.
  void continue_from(const std::shared_ptr<Pool>& before);

  // A request that names no device goes to the GPU on which its inputs lie: they need no copy.

  /// Runs the request in this thread if a session is idle. True: the request has its answer or error, and no receiver
  /// gets it. False: submit the request. So it is if all sessions are busy, with a deadline, if another thread runs
  /// requests on the GPU itself, or if the device broke under another request's run. With batching it is so, too, but
  /// for runs on the CPU that take less than to hand them over, where nobody is to wait for others. `interruptible`:
  /// also if recent runs took so long that this thread should see signals sooner.
  bool run_here(Request& request, bool interruptible = false);

  /// Gives the request to an idle session, or queues it. While the queue is full, waits until `wait_until`; false, with
  /// nothing done, if it stays full. Without a time the request is queued however many wait.
  bool submit(const std::shared_ptr<Request>& request, const std::optional<Clock::time_point>& wait_until);

  /// Lets requests of different lengths run together from now on.
  void set_padding(std::shared_ptr<const Padding> padding);

  // As those of Joining.
  void set_outputs(Joining::Outputs outputs);
  void set_apart_inputs(Joining::Apart inputs);

  /// Counts a request that was refused since the queue was full, and returns the error that says so.
  Error reject();

  /// Takes a waiting request out of the queue, or asks a running one to end; nobody gets its answer. False if it had
  /// ended.
  bool cancel(const std::shared_ptr<Request>& request);

  PoolStats stats();

  /// The runners to warm up: of devices that take requests, as many as run at the same time. None after close().
  std::vector<std::shared_ptr<Runner>> runners() const;
  /// Frees the CUDA graphs that were made beside the device's sessions. Returns whether there were any.
  bool drop_graphs(const Device& device) const;
  std::vector<std::shared_ptr<Session>> sessions(const Device& device) const;

  /// Bytes of the device's memory that its sessions' arenas and CUDA graphs take; none if a session cannot tell.
  std::optional<std::uint64_t> memory_of_runs(const Device& device) const;
  /// Gives back memory of the device that no run needs now, while other runs go on; with `graphs`, first drop_graphs().
  /// A sleeping device gives back what its sessions keep for runs. Does nothing after close().
  void give_back(const Device& device, bool graphs) override;
  /// Gives back what Options::trim_after says.
  bool give_back_surplus() override;

  /// Accepts no more requests and answers the accepted ones; with `cancel_waiting` cancels those that have not begun.
  /// Then frees the sessions' threads and runners, and returns true. Another call waits for the same. False if requests
  /// still run after `patience`: the pool accepts nothing, and another call has to finish.
  bool close(bool cancel_waiting, std::optional<std::chrono::milliseconds> patience = std::nullopt);
  bool closed() const;

  /// For a thread that must not wait for a pool, such as its worker. While such an object lives, another thread closes
  /// pools whose last reference goes in this thread.
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
  void check_process() const;
  /// The pool's lock. Throws Error in a forked child.
  MutexLock enter() const ORTMULTI_RETURNS_LOCK_OF(mutex_);
  static void note_submitted(Request& request);
  void prefer_device_of_inputs(Request& request) const;
  void check_open() const ORTMULTI_REQUIRES(mutex_);
  void check_accepted(const Request& request) const ORTMULTI_REQUIRES(mutex_);
  DeviceGroup* find_group(const Device& device) const ORTMULTI_REQUIRES(mutex_);
  DeviceGroup& group_of(const Device& device) ORTMULTI_REQUIRES(mutex_);
  void fail_all(RequestQueue& queue, const std::exception_ptr& error, Requests& finished,
                Request::Outcome outcome = Request::Outcome::failed) ORTMULTI_REQUIRES(mutex_);
  void fail_waiting(DeviceGroup& group, const std::exception_ptr& error, Requests& finished) ORTMULTI_REQUIRES(mutex_);
  /// Throws Error for a device without a session.
  DeviceGroup& known_group(const Device& device) ORTMULTI_REQUIRES(mutex_);
  /// Wakes devices if only sleeping ones could take the request.
  void wake_for(const Request& request) ORTMULTI_REQUIRES(mutex_);
  /// Whether the waiting requests take longer than waking one more device.
  bool worth_another(const DeviceGroup& group) const ORTMULTI_REQUIRES(mutex_);
  static void begin_wake(DeviceGroup& group);
  void wake_for_waiting(DeviceGroup& group) ORTMULTI_REQUIRES(mutex_);
  void check_may_sleep(const DeviceGroup& group) const ORTMULTI_REQUIRES(mutex_);
  /// Ends a sleep that has not given anything back; returns its sleeper, to be freed without the lock.
  std::shared_ptr<DeviceSleep> stop_falling(DeviceGroup& group) ORTMULTI_REQUIRES(mutex_);
  void wake_up(Worker& worker) ORTMULTI_REQUIRES(mutex_);
  /// Without the pools that it continues.
  PoolStats own_stats() const ORTMULTI_REQUIRES(mutex_);
  std::vector<std::shared_ptr<Runner>> runners_on(const Device& device) const ORTMULTI_REQUIRES(mutex_);
  /// Gives back memory of the group's runners; their buffers in any case.
  void give_back_from(DeviceGroup& group, const std::vector<std::shared_ptr<Runner>>& runners, bool graphs,
                      std::optional<Session::Shrink> arenas) ORTMULTI_EXCLUDES(mutex_);
  Worker* idle_worker(const Request& request) ORTMULTI_REQUIRES(mutex_);
  /// Whether an idle session of the device runs requests in their callers' threads although others might join them.
  bool runs_batches_here(const DeviceGroup& group) const ORTMULTI_REQUIRES(mutex_);
  /// Ends suspensions if no other device is left, and gives idle sessions what they may take now.
  void refresh() ORTMULTI_REQUIRES(mutex_);
  void give_waiting(DeviceGroup& group) ORTMULTI_REQUIRES(mutex_);
  bool full() const ORTMULTI_REQUIRES(mutex_);
  /// Lets InFlight choose the number of requests under way, after answers. Gives the mutex to others meanwhile.
  void adapt(Worker& worker, std::size_t answers, std::optional<std::size_t> elements = std::nullopt)
      ORTMULTI_REQUIRES(mutex_);
  RequestQueue& queue_of(const Request& request) ORTMULTI_REQUIRES(mutex_);
  void assign(Worker& worker, const std::shared_ptr<Request>& request) const ORTMULTI_REQUIRES(mutex_);
  /// Whether it may be part of a joint run.
  bool joins_others(const Request& request) const ORTMULTI_REQUIRES(mutex_);
  void give(Worker& worker, const std::shared_ptr<Request>& request) ORTMULTI_REQUIRES(mutex_);
  bool probe_due(const DeviceGroup& group, const Request& request) const ORTMULTI_REQUIRES(mutex_);
  void note_probe(const Worker& worker, const Request& request) const ORTMULTI_REQUIRES(mutex_);
  void place(const std::shared_ptr<Request>& request) ORTMULTI_REQUIRES(mutex_);
  void enqueue(const std::shared_ptr<Request>& request) ORTMULTI_REQUIRES(mutex_);
  std::shared_ptr<Request> unqueue(Request& request) ORTMULTI_REQUIRES(mutex_);
  /// Takes the request out of its queue, or out of a batch that has not begun. Null if it runs or has ended.
  std::shared_ptr<Request> take_back(Request& request) ORTMULTI_REQUIRES(mutex_);
  /// An error if the request would be answered after its deadline, given those before it. Null: accept it.
  std::exception_ptr why_late(const Request& request) const ORTMULTI_REQUIRES(mutex_);
  /// Fails the last request of a lower priority, if there is one.
  bool make_room_for(const Request& request, Requests& finished) ORTMULTI_REQUIRES(mutex_);
  /// Takes the first waiting request that the group may run beside `others` out of its queue; null: none.
  std::shared_ptr<Request> next_for(DeviceGroup& group, std::size_t others) ORTMULTI_REQUIRES(mutex_);
  /// After a run: the worker gets the next request, or is idle.
  void hand_over(Worker& worker) ORTMULTI_REQUIRES(mutex_);
  bool settled() const ORTMULTI_REQUIRES(mutex_);
  bool any_usable() const ORTMULTI_REQUIRES(mutex_);

  void work(Worker& worker) ORTMULTI_EXCLUDES(mutex_);
  /// Throws std::system_error if the system has no thread.
  void start(Worker& worker) ORTMULTI_REQUIRES(mutex_);
  /// Starts threads for so many runs at the same time. Returns why not; empty: there are as many.
  std::string start_more(DeviceGroup& group, std::size_t at_once) ORTMULTI_REQUIRES(mutex_);
  bool join_forming(const std::shared_ptr<Request>& request) ORTMULTI_REQUIRES(mutex_);
  void gather(Worker& worker, bool at_once) ORTMULTI_REQUIRES(mutex_);
  /// What asked so far were trials of the model.
  void forget_clients() ORTMULTI_REQUIRES(mutex_);
  /// Lets waiting requests join the forming batch.
  void take_waiting(Worker& worker) ORTMULTI_REQUIRES(mutex_);
  /// `at_once`: it got its requests as its last run ended.
  void run_batch(Worker& worker, bool at_once) ORTMULTI_REQUIRES(mutex_);
  RunEnd run_one(Worker& worker, Request& request) const ORTMULTI_REQUIRES(mutex_);
  RunEnd run_joint(Worker& worker, const Requests& batch) ORTMULTI_REQUIRES(mutex_);
  struct Audit {
    std::string difference;  ///< From the request's answer alone; empty: none but rounding.
    bool by_size = false;    ///< It comes from the run's size, not from other requests.
    std::chrono::nanoseconds time{0};
  };
  /// Runs a request of a joint run alone, and compares. `random`: outputs that differ from run to run.
  Audit audit(Worker& worker, const std::shared_ptr<Request>& request, const JointSize& size,
              const std::vector<JointSize>& sizes, const std::set<std::string>& random) const ORTMULTI_EXCLUDES(mutex_);
  /// Applies the results of a joint run's audits to it and to later ones.
  void note_audits(const Joining::Audit& done, const std::vector<Audit>& found, RunEnd& end) ORTMULTI_REQUIRES(mutex_);
  /// Runs requests of a failed joint run again: in halves, down to single ones.
  void run_again(Worker& worker, Requests batch, const RunEnd& joint, Requests& finished) ORTMULTI_REQUIRES(mutex_);
  /// Says in the log and the statistics that requests are joined no more; `joining_` knows which.
  void note_stop(const std::string& why, OrtLoggingLevel level) ORTMULTI_REQUIRES(mutex_);
  /// Concludes a run; false if the request shall be tried elsewhere.
  bool end_run(Worker& worker, Request& request, const RunEnd& end, Requests& finished) ORTMULTI_REQUIRES(mutex_);
  void conclude(Worker& worker, const std::shared_ptr<Request>& request, const RunEnd& end, Requests& finished)
      ORTMULTI_REQUIRES(mutex_);
  static bool nobody_waits(const Requests& batch);
  void end_early(Request& request) ORTMULTI_REQUIRES(mutex_);
  void take_out(DeviceGroup& group, const std::string& reason, Requests& finished) ORTMULTI_REQUIRES(mutex_);
  void finish(Request& request, Request::Outcome outcome, std::exception_ptr error = nullptr) ORTMULTI_REQUIRES(mutex_);
  static void announce(Requests& finished);

  void start_timer(const Request& request) ORTMULTI_REQUIRES(mutex_);
  void keep_deadlines() ORTMULTI_EXCLUDES(mutex_);
  std::exception_ptr deadline_error(const Request& request, const std::string& what) const ORTMULTI_REQUIRES(mutex_);

  Options options_;  // all but its padding stay
  const unsigned generation_;

  mutable Mutex mutex_;
  Condition queue_has_space_;  // in the queue
  Condition settled_;          // nothing waits and nothing runs
  std::vector<std::unique_ptr<DeviceGroup>> groups_ ORTMULTI_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Worker>> workers_ ORTMULTI_GUARDED_BY(mutex_);
  WaitingRequests waiting_ ORTMULTI_GUARDED_BY(mutex_);
  std::size_t next_group_ ORTMULTI_GUARDED_BY(mutex_) = 0;  // where the search for an idle session begins
  Joining joining_ ORTMULTI_GUARDED_BY(mutex_);
  PoolStats counts_ ORTMULTI_GUARDED_BY(mutex_);  // without those of devices
  bool closing_ ORTMULTI_GUARDED_BY(mutex_) = false;
  bool opening_ ORTMULTI_GUARDED_BY(mutex_) = false;
  std::exception_ptr failure_ ORTMULTI_GUARDED_BY(mutex_);    // of fail()
  std::shared_ptr<Pool> before_ ORTMULTI_GUARDED_BY(mutex_);  // whose work is counted here
  PoolStats done_before_ ORTMULTI_GUARDED_BY(mutex_);         // what pools before that one did

  std::atomic<bool> has_gpus_{false};                     // or had
  Clock::time_point looked_ ORTMULTI_GUARDED_BY(mutex_);  // at what may be given back

  Deadlines deadlines_ ORTMULTI_GUARDED_BY(mutex_);
  std::thread timer_ ORTMULTI_GUARDED_BY(mutex_);  // waits for them

  bool freeing_ ORTMULTI_GUARDED_BY(mutex_) = false;
  bool freed_ ORTMULTI_GUARDED_BY(mutex_) = false;
};

}  // namespace ortmulti
