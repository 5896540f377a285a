#include "core/repository/repository.hpp"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "core/base/retry.hpp"
#include "core/ort/library.hpp"

namespace ortmulti {
namespace {

// What pools do is not notified, so a wait for them looks again.
constexpr std::chrono::milliseconds looks_again{100};
constexpr std::chrono::seconds measured_again{1};

double to_seconds(Repository::Clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

double time_now() { return to_seconds(Repository::Clock::now()); }

Repository::Clock::duration to_duration(double seconds) {
  return std::chrono::duration_cast<Repository::Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

// One in a line, for its lifetime, at whose ends the repository's lock is held.
class Repository::Turn : NonCopyable {
 public:
  Turn(Repository& repository, Line& line, const Resident& of) : repository_(repository), line_(line), of_(of) {
    line_.push_back(&of_);
  }
  ~Turn() {
    line_.erase(std::ranges::find(line_, &of_));
    repository_.changed_.notify_all();
  }

  // Until its turn has come. With the repository's lock.
  void wait() const ORTMULTI_UNCHECKED {
    repository_.changed_.wait(repository_.mutex_, [this] { return line_.front() == &of_ || of_.gone_; });
    check();
  }
  // Throws if it is gone.
  void check() const {
    if (of_.gone_) {
      throw Error(ErrorKind::closed, "'" + of_.name + "' was unloaded before it woke");
    }
  }

 private:
  Repository& repository_;
  Line& line_;
  const Resident& of_;
};

Repository::Repository(const Budgets& budgets, Uncounted uncounted, std::uint64_t host_budget)
    : uncounted_(std::move(uncounted)), host_budget_(host_budget) {
  for (const auto& [device, budget] : budgets) {
    const auto added = devices_.try_emplace(to_string(device), device, budget).first;
    added->second.uncounted = uncounted_ ? uncounted_(device) : std::nullopt;
  }
}

Repository::Managed& Repository::managed(const Device& device) {
  const auto found = devices_.find(to_string(device));
  if (found == devices_.end()) {
    throw Error(ErrorKind::invalid_argument, "the repository has no budget for " + to_string(device));
  }
  return found->second;
}

template <typename Change>
void Repository::note(const Handle& resident, const Change& change) {
  const MutexLock lock(mutex_);
  Managed& on = managed(resident->device);
  if (!resident->gone_) {
    change(on.policy, resident->id_);
    notify(on);
  }
}

void Repository::notify(Managed& on) {
  const auto used = static_cast<std::int64_t>(on.policy.used());
  on.crowd->store(used - static_cast<std::int64_t>(on.policy.budget()), std::memory_order_relaxed);
  changed_.notify_all();
}

Repository::Handle Repository::enter(Managed& on, Resident resident, const ResidencyPolicy::Model& model) {
  auto handle = std::make_shared<Resident>(std::move(resident));
  handle->id_ = on.policy.add(model, "'" + handle->name + "'", time_now());
  on.residents.emplace(handle->id_, handle);
  notify(on);
  return handle;
}

void Repository::leave(Managed& on, const Handle& resident) {
  if (!resident->gone_) {
    resident->gone_ = true;
    on.policy.remove(resident->id_);
    on.residents.erase(resident->id_);
    for (const auto& [id, other] : on.residents) {  // that was loaded in its place
      if (other->name == resident->name) {
        other->evicted_ += std::exchange(resident->evicted_, 0);
      }
    }
    notify(on);
  }
}

Repository::Handle Repository::reserve(const std::string& name, const Device& device, std::uint64_t bytes) {
  ResidencyPolicy::Model model;
  model.bytes = bytes;
  model.loading = true;
  model.level = deepest_level;
  Resident resident;
  resident.name = name;
  resident.device = device;
  const MutexLock lock(mutex_);
  return enter(managed(device), std::move(resident), model);
}

void Repository::wait_for_room(const Handle& reserved) {
  acquire(reserved);
  note(reserved, [](auto& policy, auto id) { policy.woke(id, time_now(), 0); });
}

Repository::Handle Repository::add(Resident resident, const ResidencyPolicy::Model& model, const Handle& reserved) {
  const auto pool = resident.pool.lock();
  resident.memory_of_runs_ = pool ? pool->memory_of_runs(resident.device).value_or(0) : 0;
  const Handle handle = [&] {
    const MutexLock lock(mutex_);
    Managed& on = managed(resident.device);
    if (reserved) {
      leave(on, reserved);
    }
    return enter(on, std::move(resident), model);
  }();
  if (pool) {
    pool->set_gate(handle->device,
                   [self = shared_from_this(), handle](const auto& asked) { return self->gate(handle, asked); });
  }
  return handle;
}

void Repository::remove(const Handle& resident) {
  const MutexLock lock(mutex_);
  leave(managed(resident->device), resident);
}

void Repository::pin(const Handle& resident, bool pinned) {
  note(resident, [&](auto& policy, auto id) { policy.pin(id, pinned); });
}

void Repository::set_kept(const Handle& resident, SleepLevel level, std::optional<std::uint64_t> bytes) {
  note(resident, [&](auto& policy, auto id) { policy.set_kept(id, level, bytes); });
}

std::uint64_t Repository::most_kept(const Device& device, std::uint64_t seen) {
  const MutexLock lock(mutex_);
  Managed& on = managed(device);
  on.most_kept = std::max(on.most_kept, seen);
  return on.most_kept;
}

bool Repository::has_host_memory(std::uint64_t bytes) const {
  const MutexLock lock(mutex_);
  return copies_ + bytes <= host_budget_;
}

void Repository::count_copies(std::int64_t more) {
  const MutexLock lock(mutex_);
  copies_ += static_cast<std::uint64_t>(more);
}

void Repository::keep_no_copy(const Handle& resident) {
  const MutexLock lock(mutex_);
  resident->copy = HostCopy::none;
}

void Repository::observe(Managed& on) {
  struct Seen {
    Handle resident;
    PoolActivity activity;
    bool wanted = true;
    bool closed = false;
  };
  std::vector<Seen> seen;
  seen.reserve(on.residents.size());
  for (const auto& [id, resident] : on.residents) {
    if (!on.policy.model(id).loading) {
      seen.push_back({resident, {}, true, false});
    }
  }
  {
    const MutexUnlock unlocked(mutex_);
    for (auto& [resident, activity, wanted, closed] : seen) {
      const auto pool = resident->pool.lock();
      if (pool) {
        activity = pool->activity(resident->device);
        wanted = activity.wants_wake();
      }
      // A pool that is closing answers what it has accepted.
      closed = !pool || (pool->closed() && activity.busy + activity.waiting == 0);
    }
  }
  const double time = time_now();
  for (const auto& [resident, activity, wanted, closed] : seen) {
    if (closed) {
      leave(on, resident);
    } else if (!resident->gone_) {
      on.policy.observe(resident->id_, activity, time);
      resident->wanted_ = wanted;
    }
  }
}

void Repository::check_wanted(const Handle& resident) {
  const MutexUnlock unlocked(mutex_);
  const auto pool = resident->pool.lock();
  if (pool && !pool->activity(resident->device).wants_wake()) {
    throw DeviceSleep::Unwanted();
  }
}

void Repository::measure_other(Managed& on) {
  if (Clock::now() < on.measured + measured_again) {
    return;
  }
  on.measured = Clock::now();
  auto other = measure_runs(on);
  other = other ? other : measure_uncounted(on);
  if (other) {
    on.policy.set_other(*other);
  }
}

template <typename Call>
void Repository::for_each_pool(const Managed& on, const Call& call) {
  std::vector<std::pair<Handle, std::shared_ptr<Pool>>> pools;
  for (const auto& [id, resident] : on.residents) {
    if (auto pool = resident->pool.lock()) {
      pools.emplace_back(resident, std::move(pool));
    }
  }
  const MutexUnlock unlocked(mutex_);
  const auto last = std::move(pools);  // references, it may be: to be freed without the lock
  for (const auto& [resident, pool] : last) {
    call(*resident, *pool);
  }
}

std::optional<std::uint64_t> Repository::measure_runs(const Managed& on) {
  std::optional<std::uint64_t> bytes = 0;
  for_each_pool(on, [&bytes](const Resident& resident, const Pool& pool) {
    const std::optional<std::uint64_t> now = pool.memory_of_runs(resident.device);
    bytes = now && bytes ? std::optional(*bytes + *now - std::min(*now, resident.memory_of_runs_)) : std::nullopt;
  });
  return bytes;
}

std::optional<std::uint64_t> Repository::measure_uncounted(const Managed& on) {
  std::optional<UncountedMemory> now;
  if (uncounted_) {
    const MutexUnlock unlocked(mutex_);
    now = uncounted_(on.device);
  }
  if (!now || !on.uncounted || now->of_process != on.uncounted->of_process) {
    return std::nullopt;
  }
  std::int64_t grown = now->bytes - on.uncounted->bytes;
  for (const auto& [id, resident] : on.residents) {
    grown -= static_cast<std::int64_t>(resident->uncounted);
  }
  return static_cast<std::uint64_t>(std::max<std::int64_t>(0, grown));
}

std::optional<UncountedMemory> Repository::uncounted(const Device& device, Clock::time_point until) {
  if (!uncounted_) {
    return std::nullopt;
  }
  if (device.is_cuda()) {
    const MutexLock lock(mutex_);
    Managed& on = managed(device);
    changed_.wait_until(mutex_, until, [&on] { return !on.policy.remakes_sessions(); });
  }
  return uncounted_(device);
}

void Repository::measure(const Device& device) {
  const MutexLock lock(mutex_);
  Managed& on = managed(device);
  on.measured = Clock::time_point();
  measure_other(on);
  notify(on);
}

std::string_view Repository::why_no_more(const Device& device) {
  measure(device);  // else at wakes
  const MutexLock lock(mutex_);
  const ResidencyPolicy& policy = managed(device).policy;
  return policy.used() > policy.budget() * 3 / 4 ? "less than a quarter of the repository's budget is free" : "";
}

bool Repository::drop_graphs(Managed& on) {
  bool dropped = false;
  for_each_pool(on, [&dropped](const Resident& resident, const Pool& pool) {
    dropped = pool.drop_graphs(resident.device) || dropped;
  });
  on.measured = dropped ? Clock::time_point() : on.measured;
  return dropped;
}

bool Repository::give_back(Managed& on) {
  bool asked = false;
  for_each_pool(on, [&asked](const Resident& resident, Pool& pool) {
    pool.give_back(resident.device, true);
    asked = true;
  });
  on.measured = asked ? Clock::time_point() : on.measured;
  return asked;
}

Error Repository::no_room(const Managed& on, const Resident& resident, std::uint64_t at_least) {
  std::string pinned;
  for (const auto& [id, other] : on.residents) {
    if (id != resident.id_ && on.policy.model(id).pinned) {
      pinned += (pinned.empty() ? "; pinned: '" : ", '") + other->name + "'";
    }
  }
  const std::string use = megabytes(on.policy.used()) + " of the budget of " + megabytes(on.policy.budget());
  return Error(ErrorKind::out_of_memory,
               at_least == 0
                   ? "'" + resident.name + "' needs " + megabytes(on.policy.model(resident.id_).bytes) + " on " +
                         to_string(on.device) + ". " + use + " are in use, and too little of it can sleep" + pinned +
                         ": raise the budget, or unload models; the log names models that failed to"
                         " sleep"
                   : "'" + resident.name + "' found too little free memory on " + to_string(on.device) + " for its " +
                         megabytes(on.policy.needed(resident.id_)) + ", also after other models slept (" + use +
                         "): other processes use it; lower the budget");
}

void Repository::acquire(const Handle& resident, std::uint64_t at_least) {
  const Pool::NoWaiting no_waiting;
  const MutexLock lock(mutex_);
  Managed& on = managed(resident->device);
  const Turn turn(*this, on.for_room, *resident);
  const auto falls = [&] { return on.policy.state(resident->id_) == ResidencyPolicy::State::falling; };
  const auto may_pass = [&] {
    const Resident& first = *on.for_room.front();
    return at_least == 0 && &first != resident.get() && !first.gone_ && !falls() &&
           on.policy.may_pass(resident->id_, first.id_);
  };
  Clock::time_point looks = Clock::now() + looks_again;
  bool gave_back = false;
  for (;;) {
    turn.check();
    if (on.for_room.front() != resident.get() || falls()) {  // its own sleep ends first
      if (!may_pass() && Clock::now() < looks) {
        changed_.wait_until(mutex_, looks);
        continue;
      }
      check_wanted(resident);
      looks = Clock::now() + looks_again;
      if (!resident->gone_ && may_pass()) {
        on.policy.grant(resident->id_);
        notify(on);
        return;
      }
      continue;
    }
    measure_other(on);
    observe(on);
    if (resident->gone_) {
      continue;
    }
    if (!resident->wanted_) {
      throw DeviceSleep::Unwanted();
    }
    const auto decision = on.policy.decide(resident->id_, time_now(), at_least);
    switch (decision.kind) {
      case ResidencyPolicy::Decision::Kind::wake:
        notify(on);
        return;
      case ResidencyPolicy::Decision::Kind::impossible:
        if (std::exchange(gave_back, true) || !give_back(on)) {
          throw no_room(on, *resident, at_least);
        }
        at_least = 0;  // the wake finds out whether that was enough
        break;
      case ResidencyPolicy::Decision::Kind::wait: {
        const auto latest = Clock::now() + looks_again;
        changed_.wait_until(
            mutex_, decision.until ? std::min(latest, Clock::time_point(to_duration(*decision.until))) : latest);
        break;
      }
      case ResidencyPolicy::Decision::Kind::evict: {
        if (drop_graphs(on)) {
          break;
        }
        const std::uint64_t before = on.policy.models();
        evict(on, resident, decision.evictions);
        const std::uint64_t freed = before - std::min(before, on.policy.models());
        at_least -= std::min(at_least, freed);
        break;
      }
    }
  }
}

// A model that is to make room.
struct Repository::Victim {
  enum class State { runs, asleep, stays, refuses };

  Handle resident;
  SleepLevel to;
  HostCopy copy;
  State state = State::runs;
  std::string refusal = {};
  std::shared_ptr<DeviceSleep> sleeper = nullptr;  // once its pool was asked
};

void Repository::evict(Managed& on, const Handle& waiting, const std::vector<ResidencyPolicy::Eviction>& evictions) {
  std::vector<Victim> busy;
  std::vector<Victim> idle;
  for (const auto& eviction : evictions) {
    const Handle& resident = on.residents.at(eviction.model);
    (on.policy.busy(eviction.model) ? busy : idle).push_back({resident, eviction.to, resident->copy});
    on.policy.falls(eviction);
  }
  notify(on);
  // Where one that runs for long stays awake, the others need not sleep in vain.
  if (fall_asleep(on, waiting, busy)) {
    fall_asleep(on, waiting, idle);
  }
  std::ranges::move(idle, std::back_inserter(busy));
  for (const Victim& victim : busy) {
    const Resident& resident = *victim.resident;
    if (resident.gone_) {
      continue;
    }
    switch (victim.state) {
      case Victim::State::asleep:
        on.policy.fell(resident.id_, victim.to);
        ++victim.resident->evicted_;
        victim.resident->refusal_.clear();
        break;
      case Victim::State::refuses:
        victim.resident->refusal_ = victim.refusal;
        on.policy.refused(resident.id_, time_now());
        break;
      case Victim::State::stays:
        on.policy.stayed(resident.id_, time_now());
        break;
      case Victim::State::runs:
        on.policy.rests(resident.id_);
        break;
    }
  }
  notify(on);
}

bool Repository::fall_asleep(Managed& on, const Handle& waiting, std::vector<Victim>& victims) {
  const auto runs = [](const Victim& victim) { return victim.state == Victim::State::runs; };
  const Clock::time_point begin = Clock::now();
  bool first = true;  // without a wait, so that none of them begins anything while another one is waited for
  do {
    for (Victim& victim : victims) {
      const Resident& resident = *victim.resident;
      const auto latest = begin + (resident.gone_ ? Clock::duration{} : to_duration(on.policy.patience(resident.id_)));
      if (!runs(victim)) {
        continue;
      }
      if (!first && Clock::now() >= latest) {
        victim.state = Victim::State::stays;
        continue;
      }
      const auto until = first ? begin : std::min(Clock::now() + looks_again, latest);
      const MutexUnlock unlocked(mutex_);
      fall_asleep(victim, traits_of(victim.to).frees_runners ? latest : until);
    }
    first = false;
    observe(on);
  } while (!waiting->gone_ && waiting->wanted_ && std::ranges::any_of(victims, runs));
  const MutexUnlock unlocked(mutex_);
  for (const Victim& victim : victims) {
    const auto pool = victim.resident->pool.lock();
    if (pool && victim.sleeper && victim.state != Victim::State::asleep) {
      pool->stay_awake(victim.resident->device, victim.sleeper);
    }
  }
  return std::ranges::all_of(victims, [](const Victim& victim) { return victim.state == Victim::State::asleep; });
}

void Repository::fall_asleep(Victim& victim, Clock::time_point until) {
  const Resident& resident = *victim.resident;
  bool asleep = false;
  try {
    if (traits_of(victim.to).frees_runners) {
      resident.close(resident.device, victim.to,
                     std::max(0.0, std::chrono::duration<double>(until - Clock::now()).count()));
      asleep = true;
    } else if (const auto pool = resident.pool.lock()) {
      if (!victim.sleeper) {
        victim.sleeper = resident.sleeper(resident.device, victim.to, victim.copy);
      }
      asleep = pool->sleep(resident.device, victim.sleeper, until);
    }
    victim.state = asleep ? Victim::State::asleep : Victim::State::runs;
  } catch (const std::exception& error) {
    const auto kind = kind_of(std::current_exception());
    // A closed pool gives its memory back anyway; another model is chosen instead of one that runs for long.
    const bool refuses = kind != ErrorKind::closed && kind != ErrorKind::deadline;
    victim.state = refuses ? Victim::State::refuses : Victim::State::stays;
    if (refuses) {
      victim.refusal = error.what();
      onnxruntime_log().push(
          {ORT_LOGGING_LEVEL_WARNING, "ortmulti", "", "",
           "'" + resident.name + "' could not make room on " + to_string(resident.device) + ": " + error.what()});
    }
  }
}

bool Repository::sleep(const Handle& resident, const DeviceSleep& sleeper, Clock::time_point until) {
  const bool asleep = sleeper.sleep(until);
  const MutexLock lock(mutex_);
  Managed& on = managed(resident->device);
  // evict() takes note of its own.
  if (asleep && !resident->gone_ && on.policy.state(resident->id_) == ResidencyPolicy::State::resting) {
    on.policy.fell(resident->id_, sleeper.level);
    notify(on);
  }
  return asleep;
}

void Repository::wake_in_turn(const Handle& resident, const DeviceSleep& sleeper) {
  const MutexLock lock(mutex_);
  Managed& on = managed(resident->device);
  const Turn turn(*this, on.to_wake[sleeper.level], *resident);
  turn.wait();
  const Clock::time_point begin = Clock::now();
  try {
    const MutexUnlock unlocked(mutex_);
    sleeper.wake();
  } catch (const std::exception& error) {
    const bool passes = kind_of(std::current_exception()) == ErrorKind::out_of_memory;
    resident->failure_ = passes ? "" : error.what();
    throw;
  }
  const Clock::time_point end = Clock::now();
  resident->failure_.clear();
  if (!resident->gone_) {
    on.policy.woke(resident->id_, to_seconds(end), std::chrono::duration<double>(end - begin).count());
    notify(on);
  }
}

void Repository::wake(const Handle& resident, const DeviceSleep& sleeper) {
  const auto try_it = [&] {
    try {
      wake_in_turn(resident, sleeper);
    } catch (...) {
      note(resident, [](auto& policy, auto id) { policy.rests(id); });
      throw;
    }
  };
  acquire(resident);
  // Others use the device's memory, so that there is less than the budget: as much again is to be given back.
  const auto acquire_more = [&](std::size_t) {
    acquire(resident, [&] {
      const MutexLock lock(mutex_);
      return resident->gone_ ? 0 : managed(resident->device).policy.needed(resident->id_);
    }());
  };
  with_retries({{.concerns = is_lack_of_memory, .prepare = acquire_more}}, try_it);
}

std::shared_ptr<DeviceSleep> Repository::gate(const Handle& resident, const std::shared_ptr<DeviceSleep>& sleeper) {
  auto gated = std::make_shared<DeviceSleep>(*sleeper);
  {
    const MutexLock lock(mutex_);
    gated->crowd = managed(resident->device).crowd;
  }
  const auto self = shared_from_this();
  gated->sleep = [self, resident, sleeper](Clock::time_point until) { return self->sleep(resident, *sleeper, until); };
  gated->wake = [self, resident, sleeper] { self->wake(resident, *sleeper); };
  return gated;
}

std::vector<Repository::ResidentStats> Repository::residents() const {
  const MutexLock lock(mutex_);
  std::vector<ResidentStats> all;
  for (const auto& [name, on] : devices_) {
    const std::size_t first = all.size();
    for (const auto& [id, resident] : on.residents) {  // later ones last
      if (on.policy.model(id).loading) {
        continue;
      }
      ResidentStats stats{resident->name,     resident->device,   on.policy.state(id), on.policy.model(id),
                          on.policy.rate(id), resident->evicted_, resident->refusal_,  resident->failure_};
      const auto same = std::find_if(all.begin() + static_cast<std::ptrdiff_t>(first), all.end(),
                                     [&](const auto& other) { return other.name == stats.name; });
      if (same == all.end()) {
        all.push_back(std::move(stats));
        continue;
      }
      stats.model.bytes += same->model.bytes;
      for (const auto& [level, asleep] : same->model.sleeps) {
        stats.model.sleeps[level].bytes += asleep.bytes;
      }
      stats.rate += same->rate;
      stats.evicted += same->evicted;
      *same = std::move(stats);
    }
  }
  return all;
}

std::vector<Repository::DeviceUse> Repository::devices() const {
  const MutexLock lock(mutex_);
  std::vector<DeviceUse> all;
  all.reserve(devices_.size());
  for (const auto& [name, on] : devices_) {
    std::size_t waking = on.for_room.size();
    for (const auto& [level, line] : on.to_wake) {
      waking += line.size();
    }
    all.push_back({on.device, on.policy.budget(), on.policy.used(), on.policy.models(), waking});
  }
  return all;
}

}  // namespace ortmulti
