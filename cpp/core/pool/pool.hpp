#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/pool/pool_memory.hpp"

namespace ortmulti {

/// One queue in front of several sessions, each with a thread of its own. Every request that was accepted is answered,
/// failed or cancelled exactly once. May be used from any thread; throws Error, with ErrorKind::closed after close()
/// and ErrorKind::forked in a child of the process that made it.
class Pool : public PoolMemory {
 public:
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

  // These do the same as Joining's.
  void set_outputs(Joining::Outputs outputs);
  void set_apart_inputs(Joining::Apart inputs);

  /// Counts requests that were refused since the queue was full, and returns the error that says so.
  Error reject(std::size_t requests = 1);

  /// Takes a waiting request out of the queue, or asks a running one to end; nobody gets its answer. False if it had
  /// ended.
  bool cancel(const std::shared_ptr<Request>& request);

  PoolStats stats();

  /// Accepts no more requests and answers the accepted ones; with `cancel_waiting` cancels those that have not begun.
  /// Then frees the sessions' threads and runners, and returns true. Another call waits for the same. False if requests
  /// still run after `patience`: the pool accepts nothing, and another call has to finish.
  bool close(bool cancel_waiting, std::optional<std::chrono::milliseconds> patience = std::nullopt);
  bool closed() const;

  explicit Pool(const Options& options);  // for make()
  ~Pool() override;

 private:
  static void note_submitted(Request& request);
  void prefer_device_of_inputs(Request& request) const;
  void check_accepted(const Request& request) const ORTMULTI_REQUIRES(mutex_);
  /// Whether an idle session of the device runs requests in their callers' threads although others might join them.
  bool runs_batches_here(const DeviceGroup& group) const ORTMULTI_REQUIRES(mutex_);
  /// An error if the request would be answered after its deadline, given those before it. Null: accept it.
  std::exception_ptr why_late(const Request& request) const ORTMULTI_REQUIRES(mutex_);
  /// Fails the last request of a lower priority, if there is one.
  bool make_room_for(const Request& request, Requests& finished) ORTMULTI_REQUIRES(mutex_);
  /// The pool's statistics without those of the pools that it continues.
  PoolStats own_stats() const ORTMULTI_REQUIRES(mutex_);

  void start_timer(const Request& request) ORTMULTI_REQUIRES(mutex_);
  void keep_deadlines() ORTMULTI_EXCLUDES(mutex_);
  std::exception_ptr deadline_error(const Request& request, const std::string& what) const ORTMULTI_REQUIRES(mutex_);

  std::shared_ptr<Pool> before_ ORTMULTI_GUARDED_BY(mutex_);  // whose work is counted here
  PoolStats done_before_ ORTMULTI_GUARDED_BY(mutex_);         // what pools before that one did
  std::thread timer_ ORTMULTI_GUARDED_BY(mutex_);             // waits for them
  bool freeing_ ORTMULTI_GUARDED_BY(mutex_) = false;
  bool freed_ ORTMULTI_GUARDED_BY(mutex_) = false;
};

}  // namespace ortmulti
