#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/cpu_affinity.hpp"
#include "core/base/device.hpp"
#include "core/base/mutex.hpp"
#include "core/base/non_copyable.hpp"
#include "core/policy/joining.hpp"
#include "core/policy/numbers.hpp"
#include "core/pool/batching.hpp"
#include "core/pool/deadlines.hpp"
#include "core/pool/device_stats.hpp"
#include "core/pool/request.hpp"
#include "core/pool/waiting.hpp"

namespace ortmulti {

class DeviceGroup;
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

  /// Does the same as DeviceStats::for_each_count().
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

/// What a pool has: its devices, its queue, and the lock over them. Pool is made of layers, each of which calls those
/// below it alone: PoolState, Dispatcher, JointRuns, Workers, PoolSleep, PoolMemory, Pool.
class PoolState : NonCopyable {
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

  /// For a thread that must not wait for a pool, such as its worker. While such an object lives, another thread closes
  /// pools whose last reference goes in this thread.
  class NoWaiting : NonCopyable {
   public:
    NoWaiting();
    ~NoWaiting();
    /// Whether one lives in this thread.
    static bool here() noexcept;

   private:
    const bool before_;
  };

 protected:
  explicit PoolState(const Options& options);
  ~PoolState();

  void check_process() const;
  /// The pool's lock. Throws Error in a forked child.
  MutexLock enter() const ORTMULTI_RETURNS_LOCK_OF(mutex_);
  void check_open() const ORTMULTI_REQUIRES(mutex_);
  DeviceGroup* find_group(const Device& device) const ORTMULTI_REQUIRES(mutex_);
  DeviceGroup& group_of(const Device& device) ORTMULTI_REQUIRES(mutex_);
  /// Throws Error for a device without a session.
  DeviceGroup& known_group(const Device& device) ORTMULTI_REQUIRES(mutex_);
  RequestQueue& queue_of(const Request& request) ORTMULTI_REQUIRES(mutex_);
  bool full() const ORTMULTI_REQUIRES(mutex_);
  bool any_usable() const ORTMULTI_REQUIRES(mutex_);
  bool settled() const ORTMULTI_REQUIRES(mutex_);

  // NOLINTBEGIN(readability-identifier-naming): as in one class, whose layers share them
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
  std::exception_ptr failure_ ORTMULTI_GUARDED_BY(mutex_);  // of fail()

  std::atomic<bool> has_gpus_{false};  // or had

  Deadlines deadlines_ ORTMULTI_GUARDED_BY(mutex_);
  // NOLINTEND(readability-identifier-naming)
};

}  // namespace ortmulti
