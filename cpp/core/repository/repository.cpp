#include "core/repository/repository.hpp"

#include <algorithm>
#include <utility>

#include "core/repository/policy_time.hpp"

namespace ortmulti {

Repository::Repository(const Budgets& budgets, Uncounted uncounted, std::uint64_t host_budget)
    : uncounted_(std::move(uncounted)), host_budget_(host_budget) {
  for (const auto& [device, budget] : budgets) {
    const auto added = devices_.try_emplace(to_string(device), device, budget).first;
    added->second.uncounted = uncounted_(device);
  }
}

Repository::Managed& Repository::managed(const Device& device) {
  const auto found = devices_.find(to_string(device));
  if (found == devices_.end()) {
    throw Error(ErrorKind::invalid_argument, "the repository has no budget for " + to_string(device));
  }
  return found->second;
}

void Repository::note(const Handle& resident,
                      const std::function<void(ResidencyPolicy&, ResidencyPolicy::Id)>& change) {
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
