#include <algorithm>
#include <exception>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "core/ort/library.hpp"
#include "core/repository/policy_time.hpp"
#include "core/repository/repository.hpp"

namespace ortmulti {

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

}  // namespace ortmulti
