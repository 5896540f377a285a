#include "core/pool/pool_state.hpp"

#include <algorithm>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/fork.hpp"
#include "core/pool/device_group.hpp"

namespace ortmulti {
namespace {

thread_local bool may_not_wait = false;

}  // namespace

PoolState::NoWaiting::NoWaiting() : before_(std::exchange(may_not_wait, true)) {}

PoolState::NoWaiting::~NoWaiting() { may_not_wait = before_; }

bool PoolState::NoWaiting::here() noexcept { return may_not_wait; }

void DeviceStats::add(const DeviceStats& more) {
  busy += more.busy;
  waiting += more.waiting;
  for_each_count([&](const char* /*name*/, auto count) { this->*count += more.*count; });
}

void PoolStats::add(const PoolStats& more) {
  waiting += more.waiting;
  for_each_count([&](const char* /*name*/, auto count) { this->*count += more.*count; });
  if (why_unbatched.empty()) {
    why_unbatched = more.why_unbatched;
  }
  if (why_unlike.empty()) {
    why_unlike = more.why_unlike;
  }
  for (const DeviceStats& device : more.devices) {
    const auto found = std::ranges::find(devices, device.device, &DeviceStats::device);
    if (found != devices.end()) {
      found->add(device);
      continue;
    }
    devices.push_back(device);
    devices.back().state = DeviceState::removed;
    devices.back().sessions = 0;
  }
}

// NOLINTNEXTLINE(modernize-pass-by-value): whoever makes it still has its own
PoolState::PoolState(const Options& options) : options_(options), generation_(fork_generation()) {}

PoolState::~PoolState() = default;

void PoolState::check_process() const {
  if (generation_ != fork_generation()) {
    throw Error(ErrorKind::forked,
                "the pool or repository was made before this process was forked, and its threads stayed with the "
                "parent. Make it after the fork, or start workers with multiprocessing's 'spawn'");
  }
}

MutexLock PoolState::enter() const {
  check_process();
  return MutexLock(mutex_);
}

void PoolState::check_open() const {
  if (closing_) {
    throw Error(ErrorKind::closed, "the pool is closed: load the model again, or use the pool inside its 'with' block");
  }
}

bool PoolState::full() const { return options_.max_waiting && waiting_.size() >= *options_.max_waiting; }

bool PoolState::any_usable() const {
  return std::ranges::any_of(groups_, [](const auto& group) { return group->usable(); });
}

bool PoolState::settled() const {
  return waiting_.size() == 0 && std::ranges::none_of(groups_, [](const auto& group) { return group->active(); });
}

DeviceGroup* PoolState::find_group(const Device& device) const {
  const auto found = std::ranges::find(groups_, device, &DeviceGroup::device);
  return found == groups_.end() ? nullptr : found->get();
}

DeviceGroup& PoolState::group_of(const Device& device) {
  DeviceGroup* const found = find_group(device);
  return found != nullptr ? *found : *groups_.emplace_back(std::make_unique<DeviceGroup>(device, groups_));
}

DeviceGroup& PoolState::known_group(const Device& device) {
  DeviceGroup* const found = find_group(device);
  if (found == nullptr || !found->known()) {
    throw Error(ErrorKind::invalid_argument, "the pool has no session on " + to_string(device));
  }
  return *found;
}

RequestQueue& PoolState::queue_of(const Request& request) {
  return request.device ? group_of(*request.device).waiting : waiting_.for_any();
}

}  // namespace ortmulti
