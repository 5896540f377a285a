#include "core/pool/pool_memory.hpp"

#include <malloc.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/base/fork.hpp"
#include "core/policy/numbers.hpp"
#include "core/pool/device_group.hpp"

namespace ortmulti {
namespace {

// Bytes of what the arenas hold, and of the largest part of one that nobody uses.
struct Arenas {
  std::uint64_t held = 0;
  std::uint64_t unused = 0;
};

// Returns nothing if one of the sessions cannot say what its arena holds.
std::optional<Arenas> arenas_of(const std::vector<std::shared_ptr<Runner>>& runners) {
  Arenas arenas;
  std::set<const void*> sessions;
  for (const auto& runner : runners) {
    const auto arena = runner->arena();
    if (!arena) {
      return std::nullopt;
    }
    if (sessions.insert(arena->session).second) {
      arenas.held += arena->held;
      arenas.unused = std::max(arenas.unused, arena->held - std::min(arena->held, arena->used));
    }
  }
  return arenas;
}

}  // namespace

std::vector<std::shared_ptr<Runner>> PoolMemory::runners() const {
  const MutexLock lock = enter();
  std::vector<std::shared_ptr<Runner>> runners;
  runners.reserve(workers_.size());
  for (const auto& group : groups_) {
    const std::size_t most = group->at_once();
    const bool runs = !closing_ && group->usable() && group->sleep_state() == DeviceGroup::SleepState::awake;
    for (std::size_t i = 0; runs && i < std::min(most, group->workers.size()); ++i) {
      runners.push_back(group->workers[i]->runner);
    }
  }
  return runners;
}

std::vector<std::shared_ptr<Session>> PoolMemory::sessions(const Device& device) const {
  const MutexLock lock = enter();
  std::vector<std::shared_ptr<Session>> sessions;
  for (const auto& worker : workers_) {
    const auto* const runner = dynamic_cast<const SessionRunner*>(worker->runner.get());
    if (runner != nullptr && worker->group->device == device) {
      sessions.push_back(runner->loaded());
    }
  }
  return sessions;
}

std::vector<std::shared_ptr<Runner>> PoolMemory::runners_on(const Device& device) const {
  std::vector<std::shared_ptr<Runner>> runners;  // also of a device that sleeps
  for (const auto& worker : workers_) {
    if (worker->runner && worker->group->device == device) {
      runners.push_back(worker->runner);
    }
  }
  return runners;
}

std::vector<std::shared_ptr<Runner>> PoolMemory::enter_for_runners(const Device& device) const {
  const MutexLock lock = enter();
  return runners_on(device);
}

bool PoolMemory::drop_graphs(const Device& device) const {
  const auto runners = enter_for_runners(device);
  return std::ranges::count_if(runners, [](const auto& runner) { return runner->drop_graphs(); }) != 0;
}

std::optional<std::uint64_t> PoolMemory::memory_of_runs(const Device& device) const {
  std::uint64_t bytes = 0;
  std::vector<std::shared_ptr<Runner>> runners;
  {
    const MutexLock lock = enter();
    runners = runners_on(device);
    const DeviceGroup* const group = find_group(device);
    bytes = group == nullptr ? 0 : group->threads_with_handles() * *numbers::graphs_handle_bytes;
  }
  const std::optional<Arenas> arenas = arenas_of(runners);
  if (!arenas) {
    return std::nullopt;
  }
  bytes += arenas->held;
  std::set<const void*> sessions;
  for (const auto& runner : runners) {
    bytes += sessions.insert(runner->session()).second ? runner->graphs().bytes : 0;
  }
  return bytes;
}

std::uint64_t PoolMemory::memory(const Device& device) const {
  const auto runners = enter_for_runners(device);
  std::uint64_t bytes = memory_of_runs(device).value_or(0);
  std::set<const void*> stores;
  for (const auto& runner : runners) {
    const Runner::Weights weights = runner->weights();
    bytes += stores.insert(weights.store).second ? weights.bytes : 0;
  }
  return bytes;
}

void PoolMemory::give_back(const Device& device, bool graphs) {
  MutexLock lock = enter();
  const auto runners = runners_on(device);
  DeviceGroup* const group = find_group(device);
  if (group == nullptr || runners.empty()) {
    return;
  }
  lock.unlock();
  give_back_from(*group, runners, graphs, Session::Shrink::now);
}

void PoolMemory::give_back_from(DeviceGroup& group, const std::vector<std::shared_ptr<Runner>>& runners, bool graphs,
                                std::optional<Session::Shrink> arenas) {
  const std::optional<Arenas> before = arenas_of(runners);
  std::set<const void*> sessions;
  for (const auto& runner : runners) {
    try {
      if (graphs) {
        static_cast<void>(runner->drop_graphs());
      }
      runner->free_buffers();
      if (arenas && sessions.insert(runner->session()).second) {
        runner->shrink_arena(*arenas);
      }
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): it was closed, or its device is lost
    }
  }
  if (arenas && group.device == Device::cpu()) {
    malloc_trim(0);
  }
  const std::optional<Arenas> after = arenas_of(runners);
  const MutexLock lock(mutex_);
  if (arenas == Session::Shrink::in_next_run && before && after && after->held == before->held) {
    group.trimmed_at = before->held;
  } else {
    group.counts.trims += arenas && (!before || !after || after->held < before->held) ? 1 : 0;
  }
}

bool PoolMemory::give_back_surplus() {
  if (!options_.trim_after || generation_ != fork_generation()) {
    return false;
  }
  struct Due {
    DeviceGroup* group;  // which stays as long as the pool
    bool graphs;
    bool quiet;
    bool threads;  // that ended, and no run has freed what they had
    std::vector<std::shared_ptr<Runner>> runners;
  };
  std::vector<Due> due;
  bool watched = false;
  MutexLock lock(mutex_);
  if (closing_) {
    return false;
  }
  const Clock::time_point now = options_.now();
  const bool looks = now - looked_ >= *options_.trim_after / 2;
  looked_ = looks ? now : looked_;
  for (const auto& group : groups_) {
    if (looks) {
      std::uint64_t largest = 0;
      for (const Worker* worker : group->workers) {
        largest = std::max(largest, worker->runner ? worker->runner->take_largest() : 0);
      }
      const bool threads = group->renew_idle_threads();
      for (Worker* worker : group->workers) {
        if (worker->renews) {
          worker->wake.notify_one();
        }
      }
      if (const IdleMemory::Due what = group->idle_memory.look(largest); what.memory || what.graphs || threads) {
        due.push_back({group.get(), what.graphs, largest == 0, threads, runners_on(group->device)});
      }
    }
    watched = watched || !looks || group->idle_memory.watched() || group->watches_threads();
  }
  for (const Due& one : due) {
    lock.unlock();
    const std::optional<Arenas> before = arenas_of(one.runners);
    lock.lock();
    const auto at = std::exchange(one.group->trimmed_at, std::nullopt);
    const bool given_back = at && before && before->held < *at;
    one.group->counts.trims += given_back ? 1 : 0;
    lock.unlock();
    std::optional<Session::Shrink> arenas;
    if (one.threads || one.graphs || !before || before->unused >= *numbers::idle_min_unused) {
      // The session itself may not be run any more: graphs have sessions of their own.
      const bool no_run_came = at && !given_back;
      arenas = one.threads || one.quiet || no_run_came ? Session::Shrink::now : Session::Shrink::in_next_run;
    }
    give_back_from(*one.group, one.runners, one.graphs, arenas);
    const std::optional<Arenas> after = arenas_of(one.runners);
    const bool whole = !after || after->unused < *numbers::idle_min_unused;
    lock.lock();
    one.group->idle_memory.given_back(whole);
  }
  return watched;
}

}  // namespace ortmulti
