#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <string>

#include "core/base/device.hpp"
#include "core/pool/pool_state.hpp"
#include "core/pool/sleep.hpp"

namespace ortmulti {

/// The part of Pool that gives requests to sessions, keeps those that wait, and ends them. Devices that sleep are woken
/// for them.
class Dispatcher : public PoolState {
 protected:
  using PoolState::PoolState;

  Worker* idle_worker(const Request& request) ORTMULTI_REQUIRES(mutex_);
  /// Whether it may be part of a joint run.
  bool joins_others(const Request& request) const ORTMULTI_REQUIRES(mutex_);
  /// Rows of waiting requests that could be joined with this one, as many as matter.
  std::size_t rows_waiting(DeviceGroup& group, const Request& alike) ORTMULTI_REQUIRES(mutex_);
  /// Whether another run of requests like this one is under way, and all take as long as full ones: then it may wait
  /// for the end of that run, if it is answered in time all the same.
  bool may_wait_for_more(DeviceGroup& group, const Request& request) const ORTMULTI_REQUIRES(mutex_);
  /// Whether it waits so in the queue, since no full run of such requests waits there.
  bool waits_for_more(DeviceGroup& group, const Request& request) ORTMULTI_REQUIRES(mutex_);
  /// Begins runs that became full by this request, which waits: with those whose turn it is.
  void begin_full_runs(const Request& request) ORTMULTI_REQUIRES(mutex_);
  bool probe_due(const DeviceGroup& group, const Request& request) const ORTMULTI_REQUIRES(mutex_);
  void note_probe(const Worker& worker, const Request& request) const ORTMULTI_REQUIRES(mutex_);
  void assign(Worker& worker, const std::shared_ptr<Request>& request) const ORTMULTI_REQUIRES(mutex_);
  /// Has a forming batch begin, the one that would begin first, for a request that cannot join it and waits now.
  void hurry(const Request& request) ORTMULTI_REQUIRES(mutex_);
  void give(Worker& worker, const std::shared_ptr<Request>& request) ORTMULTI_REQUIRES(mutex_);
  bool join_forming(const std::shared_ptr<Request>& request) ORTMULTI_REQUIRES(mutex_);
  void place(const std::shared_ptr<Request>& request) ORTMULTI_REQUIRES(mutex_);

  void enqueue(const std::shared_ptr<Request>& request) ORTMULTI_REQUIRES(mutex_);
  std::shared_ptr<Request> unqueue(Request& request) ORTMULTI_REQUIRES(mutex_);
  /// Takes the request out of its queue, or out of a batch that has not begun. Null if it runs or has ended.
  std::shared_ptr<Request> take_back(Request& request) ORTMULTI_REQUIRES(mutex_);
  /// Takes the first waiting request that the group may run beside `others` out of its queue; null: none.
  std::shared_ptr<Request> next_for(DeviceGroup& group, std::size_t others) ORTMULTI_REQUIRES(mutex_);
  /// After a run: the worker gets the next request, or is idle.
  void hand_over(Worker& worker) ORTMULTI_REQUIRES(mutex_);
  void give_waiting(DeviceGroup& group) ORTMULTI_REQUIRES(mutex_);
  /// Ends suspensions if no other device is left, and gives idle sessions what they may take now.
  void refresh() ORTMULTI_REQUIRES(mutex_);

  void finish(Request& request, Request::Outcome outcome, std::exception_ptr error = nullptr) ORTMULTI_REQUIRES(mutex_);
  static void announce(Requests& finished);
  void fail_all(RequestQueue& queue, const std::exception_ptr& error, Requests& finished,
                Request::Outcome outcome = Request::Outcome::failed) ORTMULTI_REQUIRES(mutex_);
  void fail_waiting(DeviceGroup& group, const std::exception_ptr& error, Requests& finished) ORTMULTI_REQUIRES(mutex_);
  void take_out(DeviceGroup& group, const std::string& reason, Requests& finished) ORTMULTI_REQUIRES(mutex_);

  /// Wakes devices if only sleeping ones could take the request.
  void wake_for(const Request& request) ORTMULTI_REQUIRES(mutex_);
  /// Whether the waiting requests take longer than waking one more device.
  bool worth_another(const DeviceGroup& group) const ORTMULTI_REQUIRES(mutex_);
  static void begin_wake(DeviceGroup& group);
  void wake_for_waiting(DeviceGroup& group) ORTMULTI_REQUIRES(mutex_);
  /// Ends a sleep that has not given anything back; returns its sleeper, to be freed without the lock.
  std::shared_ptr<DeviceSleep> stop_falling(DeviceGroup& group) ORTMULTI_REQUIRES(mutex_);
};

}  // namespace ortmulti
