#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/device.hpp"
#include "core/base/error.hpp"
#include "core/base/mutex.hpp"
#include "core/memory/device_memory.hpp"
#include "core/policy/residency_policy.hpp"
#include "core/pool/pool.hpp"
#include "core/weights/store.hpp"

namespace ortmulti {

/// Keeps the models of several pools within a budget of memory for each device. A pool's device that wakes waits here
/// until others have made room for it, in the order of the wakes.
///
/// Locks: the repository's is taken while no pool's is held, and no pool is called under it.
class Repository : public std::enable_shared_from_this<Repository> {
 public:
  using Clock = Pool::Clock;

  struct Resident {
    std::string name;  ///< Of the model, for messages.
    Device device;
    std::weak_ptr<Pool> pool;
    HostCopy copy = HostCopy::none;  ///< With which it sleeps to make room.
    std::uint64_t uncounted = 0;     ///< Bytes that its load took and nobody counts.
    /// Makes what has a device of the pool sleep at a level of its model that keeps the runners.
    std::function<std::shared_ptr<DeviceSleep>(const Device&, SleepLevel, HostCopy)> sleeper;
    /// Puts a device to sleep at a level that frees them, after runs of so many seconds at most; throws.
    std::function<void(const Device&, SleepLevel, double)> close;

   private:
    friend class Repository;
    ResidencyPolicy::Id id_ = 0;
    bool wanted_ = true;  // whether its pool wanted it awake, when it was observed last
    bool gone_ = false;
    std::uint64_t evicted_ = 0;
    std::string refusal_;               // why it did not sleep, when it was to make room last
    std::string failure_;               // why its last wake failed, but for a lack of memory
    std::uint64_t memory_of_runs_ = 0;  // which the model's bytes have
  };
  using Handle = std::shared_ptr<Resident>;

  struct ResidentStats {
    std::string name;
    Device device;
    ResidencyPolicy::State state = ResidencyPolicy::State::resting;
    ResidencyPolicy::Model model;
    double rate = 0;
    std::uint64_t evicted = 0;  ///< How often it slept to make room for others.
    std::string refusal;        ///< Why it did not, the last time.
    std::string failure;        ///< Why its last wake failed, but for a lack of memory, which passes.
  };
  struct DeviceUse {
    Device device;
    std::uint64_t budget = 0;
    std::uint64_t used = 0;
    std::uint64_t models = 0;  ///< Of that what models take.
    std::size_t waking = 0;    ///< Wakes under way, with those that wait for room.
  };

  /// `uncounted`: none where it cannot be said. `host_budget`: bytes for pinned copies of weights. Beside models, what
  /// their arenas and CUDA graphs took later counts; where a session cannot tell, what came to `uncounted`.
  using Budgets = std::vector<std::pair<Device, std::uint64_t>>;
  using Uncounted = std::function<std::optional<UncountedMemory>(const Device&)>;
  explicit Repository(
      const Budgets& budgets, Uncounted uncounted = [](const Device& /*device*/) { return std::nullopt; },
      std::uint64_t host_budget = 0);

  /// Takes room for a model that is being loaded, until remove() or add(). `name` is for messages. Throws Error with
  /// ErrorKind::out_of_memory where the bytes exceed the budget.
  Handle reserve(const std::string& name, const Device& device, std::uint64_t bytes);
  /// Waits until others have slept. Throws Error with ErrorKind::out_of_memory, or with ErrorKind::closed after
  /// remove().
  void wait_for_room(const Handle& reserved);

  /// Takes over a model, and what was reserved for it. Its pool's sleeps and wakes on the device go through
  /// Pool::set_gate() from now on: its wakes wait for room. It may exceed the budget: to reserve 0 bytes ends that.
  Handle add(Resident resident, const ResidencyPolicy::Model& model, const Handle& reserved);
  /// Forgets it. A wake of it that waits for room fails.
  void remove(const Handle& resident);
  void pin(const Handle& resident, bool pinned);
  /// What it keeps at a level, measured again. None: it cannot go there.
  void set_kept(const Handle& resident, SleepLevel level, std::optional<std::uint64_t> bytes);
  /// Raises and returns the most that a sleeping model was seen to keep on the device.
  std::uint64_t most_kept(const Device& device, std::uint64_t seen = 0);
  /// Whether the host's budget has room for a pinned copy beside those that are counted.
  bool has_host_memory(std::uint64_t bytes) const;
  void count_copies(std::int64_t more);
  /// It sleeps without a pinned copy from now on.
  void keep_no_copy(const Handle& resident);

  /// On a GPU waits until no model's sessions are being made again or closed, up to `until`: nobody counts these yet.
  std::optional<UncountedMemory> uncounted(const Device& device, Clock::time_point until);

  /// Measures now what counts beside models.
  void measure(const Device& device);
  /// Why no further sessions of models are to be made now, for users; empty where there is memory for them.
  std::string_view why_no_more(const Device& device);

  /// The statistics of each name on each device, however many models have it while one is replaced. They are without
  /// reservations.
  std::vector<ResidentStats> residents() const;
  std::vector<DeviceUse> devices() const;

 private:
  std::shared_ptr<DeviceSleep> gate(const Handle& resident, const std::shared_ptr<DeviceSleep>& sleeper);
  /// The models that wait, in order of arrival.
  using Line = std::deque<const Resident*>;
  struct Managed {
    Managed(Device of, std::uint64_t budget) : device(std::move(of)), policy(budget) {}
    const Device device;
    ResidencyPolicy policy;
    std::map<ResidencyPolicy::Id, Handle> residents;
    Line for_room;
    std::map<SleepLevel, Line> to_wake;  // from each level: one has the whole link
    Clock::time_point measured;
    std::optional<UncountedMemory> uncounted;  // before any model
    std::uint64_t most_kept = 0;
    /// Bytes that wakes would find missing, less than 0 where there is room.
    std::shared_ptr<std::atomic<std::int64_t>> crowd = std::make_shared<std::atomic<std::int64_t>>();
  };
  class Turn;

  Managed& managed(const Device& device) ORTMULTI_REQUIRES(mutex_);
  Handle enter(Managed& on, Resident resident, const ResidencyPolicy::Model& model) ORTMULTI_REQUIRES(mutex_);
  void leave(Managed& on, const Handle& resident) ORTMULTI_REQUIRES(mutex_);
  /// Waits until the model may take its memory. Throws DeviceSleep::Unwanted where its pool does not want it.
  void acquire(const Handle& resident, std::uint64_t at_least = 0) ORTMULTI_EXCLUDES(mutex_);
  void observe(Managed& on) ORTMULTI_REQUIRES(mutex_);
  void check_wanted(const Handle& resident) ORTMULTI_REQUIRES(mutex_);
  /// What the models' runs took since their load, of those that tell.
  struct Runs {
    std::uint64_t bytes = 0;
    bool all_tell = true;
  };
  Runs measure_runs(const Managed& on) ORTMULTI_REQUIRES(mutex_);
  /// What was taken since the models' loads that nobody counts; 0 where it cannot be said.
  std::uint64_t measure_uncounted(const Managed& on) ORTMULTI_REQUIRES(mutex_);
  void measure_other(Managed& on) ORTMULTI_REQUIRES(mutex_);
  /// Graphs of all models there go before any model sleeps. Returns whether there were any.
  bool drop_graphs(Managed& on) ORTMULTI_REQUIRES(mutex_);
  /// And what arenas have, before a wake fails. Returns whether there was anybody to ask.
  bool give_back(Managed& on) ORTMULTI_REQUIRES(mutex_);
  /// Calls it with each resident there that has a pool, and the pool.
  template <typename Call>
  void for_each_pool(const Managed& on, const Call& call) ORTMULTI_REQUIRES(mutex_);
  void evict(Managed& on, const Handle& waiting, const std::vector<ResidencyPolicy::Eviction>& evictions)
      ORTMULTI_REQUIRES(mutex_);
  struct Victim;
  /// Returns whether all of them sleep; ends early where nobody waits any more.
  bool fall_asleep(Managed& on, const Handle& waiting, std::vector<Victim>& victims) ORTMULTI_REQUIRES(mutex_);
  void fall_asleep(Victim& victim, Clock::time_point until) ORTMULTI_EXCLUDES(mutex_);
  void wake(const Handle& resident, const DeviceSleep& sleeper) ORTMULTI_EXCLUDES(mutex_);
  void wake_in_turn(const Handle& resident, const DeviceSleep& sleeper) ORTMULTI_EXCLUDES(mutex_);
  bool sleep(const Handle& resident, const DeviceSleep& sleeper, Clock::time_point until) ORTMULTI_EXCLUDES(mutex_);
  /// Has the policy note something of the model, unless that is gone.
  void note(const Handle& resident, const std::function<void(ResidencyPolicy&, ResidencyPolicy::Id)>& change)
      ORTMULTI_EXCLUDES(mutex_);
  void notify(Managed& on) ORTMULTI_REQUIRES(mutex_);
  static Error no_room(const Managed& on, const Resident& resident, std::uint64_t at_least);

  mutable Mutex mutex_;
  Condition changed_;
  std::map<std::string, Managed> devices_ ORTMULTI_GUARDED_BY(mutex_);
  const Uncounted uncounted_;
  const std::uint64_t host_budget_;
  std::uint64_t copies_ ORTMULTI_GUARDED_BY(mutex_) = 0;  // bytes of the host's memory
};

}  // namespace ortmulti
