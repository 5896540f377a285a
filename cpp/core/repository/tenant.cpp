#include "core/repository/tenant.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/error.hpp"
#include "core/ort/library.hpp"

namespace ortmulti {
namespace {

// The longest wait for a moment in which no model's sessions are made or closed.
constexpr std::chrono::seconds quiet{5};
constexpr std::chrono::milliseconds one_try{100};  // of a sleep
constexpr double no_limit = 1e8;                   // seconds

}  // namespace

Tenant::Tenant(std::shared_ptr<Repository> repository, std::string name, const std::vector<Device>& devices,
               const ModelFiles& files)
    : repository_(std::move(repository)), name_(std::move(name)) {
  for (const Device& device : devices) {
    places_.push_back({device, Footprint(device, files, repository_->most_kept(device)), nullptr, std::nullopt});
  }
}

Tenant::~Tenant() { release(); }  // NOLINT(bugprone-exception-escape): its devices are known

Repository::Handle Tenant::keep(Repository::Handle resident) {
  const MutexLock lock(mutex_);
  if (released_) {
    repository_->remove(resident);
    throw Error(ErrorKind::closed, "'" + name_ + "' was unloaded before it was loaded");
  }
  residents_.push_back(resident);
  return resident;
}

void Tenant::reserve() {
  for (Place& place : places_) {
    place.reserved = keep(repository_->reserve(name_, place.device, place.footprint.expected()));
    repository_->wait_for_room(place.reserved);
  }
  for (Place& place : places_) {
    place.before = uncounted(place.device);
  }
}

void Tenant::enter(const Repository::Resident& loaded, double seconds, bool pinned, bool protect) {
  const auto pool = loaded.pool.lock();
  if (!pool) {  // the caller has given up
    throw Error(ErrorKind::closed, "'" + name_ + "' was closed before it was measured");
  }
  const PoolStats stats = pool->stats();
  for (Place& place : places_) {
    const Device& device = place.device;
    const auto on = std::ranges::find(stats.devices, device, &DeviceStats::device);
    if (on == stats.devices.end()) {
      throw Error(ErrorKind::device, "'" + name_ + "' has no session on " + to_string(device));
    }
    place.footprint.loaded(on->sessions, pool->memory(device), grown(place), on->arena);
    ResidencyPolicy::Model model;
    model.bytes = place.footprint.taken();
    model.sleeps = place.footprint.sleeps(seconds);
    model.pinned = pinned;
    model.protect = protect;
    const bool copies = device.is_cuda() && repository_->has_host_memory(model.bytes);
    Repository::Resident resident = loaded;
    resident.name = name_;
    resident.device = device;
    resident.copy = copies ? HostCopy::if_possible : HostCopy::none;
    resident.uncounted = place.footprint.uncounted();
    const auto handle = keep(repository_->add(std::move(resident), model, place.reserved));
    if (device.is_cuda()) {
      measure_sleep(place.footprint, *pool, handle, model.sleeps, copies);
    }
    // Others sleep if it took more than was expected.
    const auto excess = keep(repository_->reserve(name_, device, 0));
    repository_->wait_for_room(excess);
    repository_->remove(excess);
  }
}

void Tenant::measure_sleep(const Footprint& footprint, Pool& pool, const Repository::Handle& resident,
                           const Footprint::Levels& levels, bool copies) {
  const Device& device = resident->device;
  bool asleep = false;
  for (const auto& [level, ignored] : levels) {
    if (traits_of(level).frees_runners) {  // and keeps nothing
      if (!asleep) {
        resident->close(device, level, no_limit);
      }
      return;
    }
    try {
      copies = sleep(pool, resident, level, copies);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::not_implemented) {
        throw;
      }
      repository_->set_kept(resident, level, std::nullopt);
      continue;
    }
    asleep = true;
    const std::uint64_t kept = footprint.kept(pool.memory(device));
    repository_->set_kept(resident, level, kept);
    repository_->most_kept(device, footprint.shown(kept));
    count_copy(copies ? footprint.taken() - kept : 0);
  }
}

bool Tenant::sleep(Pool& pool, const Repository::Handle& resident, SleepLevel level, bool copies) {
  const auto fall_asleep = [&](HostCopy copy) {
    const auto sleeper = resident->sleeper(resident->device, level, copy);
    while (!pool.sleep(resident->device, sleeper, Repository::Clock::now() + one_try)) {
    }
  };
  try {
    fall_asleep(copies ? HostCopy::pinned : HostCopy::none);
    return copies;
  } catch (const Error& error) {
    if (!copies || error.kind() != ErrorKind::out_of_memory) {
      throw;
    }
    onnxruntime_log().push({ORT_LOGGING_LEVEL_INFO, "ortmulti", "", "",
                            "the weights of '" + name_ + "' are read from files at each wake: " + error.what()});
  }
  repository_->keep_no_copy(resident);
  fall_asleep(HostCopy::none);
  return false;
}

std::optional<UncountedMemory> Tenant::uncounted(const Device& device) const {
  return repository_->uncounted(device, Repository::Clock::now() + quiet);
}

std::optional<std::int64_t> Tenant::grown(const Place& place) const {
  const auto now = place.before ? uncounted(place.device) : std::nullopt;
  return now && now->of_process == place.before->of_process ? std::optional(now->bytes - place.before->bytes)
                                                            : std::nullopt;
}

void Tenant::count_copy(std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  if (!released_ && bytes > copied_) {
    repository_->count_copies(static_cast<std::int64_t>(bytes - copied_));
    copied_ = bytes;
  }
}

void Tenant::pin(bool pinned) {
  const MutexLock lock(mutex_);
  for (const auto& resident : residents_) {
    repository_->pin(resident, pinned);
  }
}

bool Tenant::keeps_copy() const {
  const MutexLock lock(mutex_);
  return copied_ > 0;
}

void Tenant::release() {
  const MutexLock lock(mutex_);
  released_ = true;
  for (const auto& resident : residents_) {
    repository_->remove(resident);
  }
  repository_->count_copies(-static_cast<std::int64_t>(std::exchange(copied_, 0)));
}

}  // namespace ortmulti
