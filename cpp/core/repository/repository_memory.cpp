#include <algorithm>
#include <utility>
#include <vector>

#include "core/repository/repository.hpp"

namespace ortmulti {
namespace {

constexpr std::chrono::seconds measured_again{1};

}  // namespace

void Repository::measure_other(Managed& on) {
  if (Clock::now() < on.measured + measured_again) {
    return;
  }
  on.measured = Clock::now();
  const Runs runs = measure_runs(on);
  on.policy.set_other(runs.bytes + (runs.all_tell ? 0 : measure_uncounted(on)));
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

Repository::Runs Repository::measure_runs(const Managed& on) {
  Runs runs;
  for_each_pool(on, [&runs](const Resident& resident, const Pool& pool) {
    const std::optional<std::uint64_t> now = pool.memory_of_runs(resident.device);
    runs.all_tell = runs.all_tell && now;
    runs.bytes += now ? *now - std::min(*now, resident.memory_of_runs_) : 0;
  });
  return runs;
}

std::uint64_t Repository::measure_uncounted(const Managed& on) {
  std::optional<UncountedMemory> now;
  {
    const MutexUnlock unlocked(mutex_);
    now = uncounted_(on.device);
  }
  if (!now || !on.uncounted || now->of_process != on.uncounted->of_process) {
    return 0;
  }
  std::int64_t grown = now->bytes - on.uncounted->bytes;
  for (const auto& [id, resident] : on.residents) {
    const bool closed = traits_of(on.policy.model(id).level).frees_runners;
    grown -= closed ? 0 : static_cast<std::int64_t>(resident->uncounted);
  }
  return static_cast<std::uint64_t>(std::max<std::int64_t>(0, grown));
}

std::optional<UncountedMemory> Repository::uncounted(const Device& device, Clock::time_point until) {
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

}  // namespace ortmulti
