#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "core/base/retry.hpp"
#include "core/repository/policy_time.hpp"
#include "core/repository/repository.hpp"

namespace ortmulti {

// A model's place in a line of models that wait, while this object lives. The caller that makes and destroys it holds
// the repository's lock.
class Repository::Turn : NonCopyable {
 public:
  Turn(Repository& repository, Line& line, const Resident& of) : repository_(repository), line_(line), of_(of) {
    line_.push_back(&of_);
  }
  ~Turn() {
    line_.erase(std::ranges::find(line_, &of_));
    repository_.changed_.notify_all();
  }

  // Waits until the model is first in the line. The caller holds the repository's lock.
  void wait() const ORTMULTI_UNCHECKED {
    repository_.changed_.wait(repository_.mutex_, [this] { return line_.front() == &of_ || of_.gone_; });
    check();
  }
  // Throws Error if the model was unloaded.
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

}  // namespace ortmulti
