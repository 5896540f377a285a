#include "core/repository/repository.hpp"

#include <algorithm>
#include <exception>

#include "core/ort/library.hpp"

namespace ortmulti {
namespace {

// For the runs of a model that is to make room. It is awake again then, and another one is chosen.
constexpr std::chrono::seconds patience{1};
// A model that failed to sleep, such as one whose file was replaced, is not asked again for so long.
constexpr std::chrono::seconds asked_again{10};
// What pools do is not notified, so a wait for them looks again.
constexpr std::chrono::milliseconds looks_again{100};
constexpr std::chrono::seconds measured_again{1};

double to_seconds(Repository::Clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

double time_now() { return to_seconds(Repository::Clock::now()); }

Repository::Clock::time_point to_time(double time) {
  return Repository::Clock::time_point(
      std::chrono::duration_cast<Repository::Clock::duration>(std::chrono::duration<double>(time)));
}

}  // namespace

// One in a line, for its lifetime. With the repository's lock.
class Repository::Place {
 public:
  Place(Repository& repository, Lock& lock, Line& line, const Resident& of)
      : repository_(repository), lock_(lock), line_(line), of_(of) {
    line_.push_back(&of_);
  }
  ~Place() {
    if (!lock_.owns_lock()) {
      lock_.lock();
    }
    line_.erase(std::find(line_.begin(), line_.end(), &of_));
    repository_.changed_.notify_all();
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  // Until its turn has come.
  void wait() const {
    repository_.changed_.wait(lock_, [this] { return line_.front() == &of_ || of_.gone_; });
    if (of_.gone_) {
      throw Error(ErrorKind::closed, "'" + of_.name + "' was unloaded before it woke");
    }
  }

 private:
  Repository& repository_;
  Lock& lock_;
  Line& line_;
  const Resident& of_;
};

Repository::Repository(const std::vector<std::pair<Device, std::uint64_t>>& budgets,
                       std::function<std::optional<std::uint64_t>(const Device&)> measure)
    : measure_(std::move(measure)) {
  for (const auto& [device, budget] : budgets) {
    devices_.try_emplace(to_string(device), device, budget);
  }
}

Repository::Managed& Repository::managed(const Device& device) {
  const auto found = devices_.find(to_string(device));
  if (found == devices_.end()) {
    throw Error(ErrorKind::invalid_argument, "the repository has no budget for " + to_string(device));
  }
  return found->second;
}

void Repository::notify(Managed& on) {
  ++on.changes;
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
    on.evicted.erase(resident->id_);
    notify(on);
  }
}

Repository::Room::~Room() { cancel(); }  // NOLINT(bugprone-exception-escape): its device is known

void Repository::Room::wait() {
  repository_->acquire(handle_);
  const Lock lock(repository_->mutex_);
  if (!handle_->gone_) {
    Managed& on = repository_->managed(handle_->device);
    on.policy.woke(handle_->id_, time_now(), 0);
    repository_->notify(on);
  }
}

void Repository::Room::cancel() {
  const Lock lock(repository_->mutex_);
  repository_->leave(repository_->managed(handle_->device), handle_);
}

std::shared_ptr<Repository::Room> Repository::room(const std::string& name, const Device& device, std::uint64_t bytes) {
  ResidencyPolicy::Model model;
  model.weights = bytes;
  model.sleeps = model.closes = false;
  model.level = Level::session;
  Resident resident;
  resident.name = name;
  resident.device = device;
  const Handle handle = [&] {
    const Lock lock(mutex_);
    auto entered = enter(managed(device), std::move(resident), model);
    entered->loading_ = true;
    return entered;
  }();
  return std::shared_ptr<Room>(new Room(shared_from_this(), handle));
}

Repository::Handle Repository::add(Resident resident, const ResidencyPolicy::Model& model,
                                   const std::shared_ptr<Room>& room) {
  const Lock lock(mutex_);
  Managed& on = managed(resident.device);
  if (room) {
    leave(on, room->handle_);
  }
  return enter(on, std::move(resident), model);
}

void Repository::remove(const Handle& resident) {
  const Lock lock(mutex_);
  leave(managed(resident->device), resident);
}

void Repository::pin(const Handle& resident, bool pinned) {
  const Lock lock(mutex_);
  Managed& on = managed(resident->device);
  if (!resident->gone_) {
    on.policy.pin(resident->id_, pinned);
    notify(on);
  }
}

void Repository::resize(const Handle& resident, std::uint64_t weights, std::uint64_t kept) {
  const Lock lock(mutex_);
  Managed& on = managed(resident->device);
  if (!resident->gone_) {
    on.policy.resize(resident->id_, weights, kept);
    notify(on);
  }
}

void Repository::observe(Managed& on, Lock& lock) {
  struct Seen {
    Handle resident;
    ResidencyPolicy::Activity activity;
    bool wanted = true;
  };
  std::vector<Seen> seen;
  seen.reserve(on.residents.size());
  for (const auto& [id, resident] : on.residents) {
    seen.push_back({resident, {}});
  }
  lock.unlock();
  std::vector<Handle> closed;
  for (auto& [resident, activity, wanted] : seen) {
    const auto pool = resident->pool.lock();
    if (pool) {
      const PoolActivity found = pool->activity(resident->device);
      activity = {found.arrived, found.busy, found.waiting, found.run_seconds};
      wanted = found.asked_awake || found.waiting > 0;
    }
    // A pool that is closing answers what it has accepted.
    if (!resident->loading_ && (!pool || (pool->closed() && activity.busy + activity.waiting == 0))) {
      closed.push_back(resident);
    }
  }
  const double time = time_now();
  lock.lock();
  for (const auto& [resident, activity, wanted] : seen) {
    if (!resident->gone_) {
      on.policy.observe(resident->id_, activity, time);
      resident->wanted_ = wanted;
    }
  }
  for (const Handle& resident : closed) {
    leave(on, resident);
  }
}

void Repository::measure_other(Managed& on, Lock& lock) {
  if (!measure_ || on.policy.in_transition() || Clock::now() < on.measured + measured_again) {
    return;
  }
  const std::uint64_t before = on.changes;
  on.measured = Clock::now();
  lock.unlock();
  const std::optional<std::uint64_t> used = measure_(on.device);
  lock.lock();
  if (used && on.changes == before) {
    const std::uint64_t models = on.policy.models();
    on.policy.set_other(*used - std::min(*used, models));
  }
}

Error Repository::no_room(const Managed& on, const Resident& resident, std::uint64_t at_least) {
  const auto& model = on.policy.model(resident.id_);
  std::string pinned;
  for (const auto& [id, other] : on.residents) {
    if (id != resident.id_ && on.policy.model(id).pinned) {
      pinned += (pinned.empty() ? "; pinned: '" : ", '") + other->name + "'";
    }
  }
  const std::string use = megabytes(on.policy.used()) + " of the budget of " + megabytes(on.policy.budget());
  return Error(ErrorKind::out_of_memory,
               at_least == 0
                   ? "'" + resident.name + "' needs " + megabytes(model.weights + model.kept) + " on " +
                         to_string(on.device) + ". " + use + " are in use, and too little of it can sleep" + pinned +
                         ": raise the budget, or unload models; the log names models that failed to"
                         " sleep"
                   : "'" + resident.name + "' found too little free memory on " + to_string(on.device) + " for its " +
                         megabytes(model.weights) + ", also after other models slept (" + use +
                         "): other processes use it; lower the budget");
}

void Repository::acquire(const Handle& resident, std::uint64_t at_least) {
  Lock lock(mutex_);
  Managed& on = managed(resident->device);
  const Place place(*this, lock, on.for_room, *resident);
  for (;;) {
    place.wait();
    if (on.policy.state(resident->id_) == ResidencyPolicy::State::falling) {  // its sleep ends first
      changed_.wait(lock);
      continue;
    }
    measure_other(on, lock);
    observe(on, lock);
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
        throw no_room(on, *resident, at_least);
      case ResidencyPolicy::Decision::Kind::wait: {
        const auto latest = Clock::now() + looks_again;
        changed_.wait_until(lock, decision.until ? std::min(latest, to_time(*decision.until)) : latest);
        break;
      }
      case ResidencyPolicy::Decision::Kind::evict: {
        const std::uint64_t before = on.policy.models();
        evict(on, decision.evictions, lock);
        const std::uint64_t freed = before - std::min(before, on.policy.models());
        at_least -= std::min(at_least, freed);
        break;
      }
    }
  }
}

void Repository::evict(Managed& on, const std::vector<ResidencyPolicy::Eviction>& evictions, Lock& lock) {
  std::vector<Handle> victims;
  for (const auto& eviction : evictions) {
    victims.push_back(on.residents.at(eviction.model));
    on.policy.falls(eviction);
  }
  notify(on);
  for (std::size_t i = 0; i < victims.size(); ++i) {
    const Handle& victim = victims[i];
    bool asleep = false;
    bool refused = false;
    lock.unlock();
    try {
      if (evictions[i].to == Level::session) {
        victim->close();
        asleep = true;
      } else if (const auto pool = victim->pool.lock()) {
        const auto sleeper = gate(victim, victim->sleeper());
        asleep = pool->sleep(victim->device, sleeper, Clock::now() + patience);
        if (!asleep) {
          pool->stay_awake(victim->device, sleeper);
        }
      }
    } catch (const std::exception& error) {
      constexpr int warning = 2;
      const auto* const ours = dynamic_cast<const Error*>(&error);
      const ErrorKind kind = ours == nullptr ? ErrorKind::fail : ours->kind();
      // A closed pool gives its memory back anyway; another model is chosen instead of one that runs for long.
      refused = kind != ErrorKind::closed && kind != ErrorKind::deadline;
      if (refused) {
        onnxruntime_log().push(
            {warning, "ortmulti", "", "",
             "'" + victim->name + "' could not make room on " + to_string(victim->device) + ": " + error.what()});
      }
    }
    lock.lock();
    if (victim->gone_) {
      continue;
    }
    if (asleep) {
      on.policy.fell(victim->id_, evictions[i].to);
      ++on.evicted[victim->id_];
    } else if (refused) {
      on.policy.refused(victim->id_, time_now() + std::chrono::duration<double>(asked_again).count());
    } else {
      on.policy.stayed(victim->id_, time_now() + std::chrono::duration<double>(patience).count());
    }
    notify(on);
  }
}

bool Repository::sleep(const Handle& resident, const DeviceSleep& sleeper, Clock::time_point until) {
  const bool asleep = sleeper.sleep(until);
  const Lock lock(mutex_);
  Managed& on = managed(resident->device);
  // evict() takes note of its own.
  if (asleep && !resident->gone_ && on.policy.state(resident->id_) == ResidencyPolicy::State::resting) {
    on.policy.fell(resident->id_, sleeper.frees_runners() ? Level::session : Level::weights);
    notify(on);
  }
  return asleep;
}

void Repository::wake_in_turn(const Handle& resident, const DeviceSleep& sleeper) {
  Lock lock(mutex_);
  Managed& on = managed(resident->device);
  const Place place(*this, lock, sleeper.frees_runners() ? on.to_create : on.to_copy, *resident);
  place.wait();
  lock.unlock();
  const Clock::time_point begin = Clock::now();
  std::exception_ptr error;
  try {
    sleeper.wake();
  } catch (...) {
    error = std::current_exception();
  }
  const Clock::time_point end = Clock::now();
  lock.lock();
  if (error) {
    std::rethrow_exception(error);
  }
  if (!resident->gone_) {
    on.policy.woke(resident->id_, to_seconds(end), std::chrono::duration<double>(end - begin).count());
    notify(on);
  }
}

void Repository::wake(const Handle& resident, const DeviceSleep& sleeper) {
  const auto give_up = [&] {
    const Lock lock(mutex_);
    if (!resident->gone_) {
      Managed& on = managed(resident->device);
      on.policy.slept_on(resident->id_);
      notify(on);
    }
  };
  acquire(resident);
  try {
    wake_in_turn(resident, sleeper);
    return;
  } catch (const Error& error) {
    give_up();
    if (error.kind() != ErrorKind::out_of_memory) {
      throw;
    }
  } catch (...) {
    give_up();
    throw;
  }
  // Others use the device's memory, so that there is less than the budget: as much again is to be given back.
  acquire(resident, [&] {
    const Lock lock(mutex_);
    return resident->gone_ ? 0 : managed(resident->device).policy.model(resident->id_).weights;
  }());
  try {
    wake_in_turn(resident, sleeper);
  } catch (...) {
    give_up();
    throw;
  }
}

std::shared_ptr<DeviceSleep> Repository::gate(const Handle& resident, const std::shared_ptr<DeviceSleep>& sleeper) {
  auto gated = std::make_shared<DeviceSleep>();
  gated->level = sleeper->level;
  gated->auto_wake = sleeper->auto_wake;
  {
    const Lock lock(mutex_);
    gated->crowd = managed(resident->device).crowd;
  }
  const auto self = shared_from_this();
  gated->sleep = [self, resident, sleeper](Clock::time_point until) { return self->sleep(resident, *sleeper, until); };
  gated->wake = [self, resident, sleeper] { self->wake(resident, *sleeper); };
  return gated;
}

std::vector<Repository::ResidentStats> Repository::residents() const {
  const Lock lock(mutex_);
  std::vector<ResidentStats> all;
  for (const auto& [name, on] : devices_) {
    for (const auto& [id, resident] : on.residents) {
      const ResidencyPolicy::Model& model = on.policy.model(id);
      const auto evicted = on.evicted.find(id);
      all.push_back({resident->name, resident->device, on.policy.state(id), model, on.policy.rate(id),
                     evicted == on.evicted.end() ? 0 : evicted->second});
    }
  }
  return all;
}

std::vector<Repository::DeviceUse> Repository::devices() const {
  const Lock lock(mutex_);
  std::vector<DeviceUse> all;
  all.reserve(devices_.size());
  for (const auto& [name, on] : devices_) {
    all.push_back({on.device, on.policy.budget(), on.policy.used(), on.policy.models(),
                   on.for_room.size() + on.to_copy.size() + on.to_create.size()});
  }
  return all;
}

}  // namespace ortmulti
