// How many rows the runs of a device have, and which requests wait for more of them.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>

#include "core/pool/device_group.hpp"
#include "core/pool/dispatcher.hpp"

namespace ortmulti {

std::size_t DeviceGroup::most_rows(const Request& request, const Batching& batching) {
  const std::string& key = request.batch_key_;
  if (batching.padding || key.empty()) {
    return batching.max_size;
  }
  return may_hold_rows(batching)   ? held_rows.use(key).choose(batching.max_size)
         : device == Device::cpu() ? rows_per_run.use(key).choose(batching.max_size)
                                   : batching.max_size;
}

bool DeviceGroup::holds_rows(const std::string& batch_key, const Batching& batching) {
  return may_hold_rows(batching) && held_rows.has(batch_key) && held_rows.use(batch_key).holds();
}

void DeviceGroup::stop_holding_rows(const std::string& batch_key) {
  if (held_rows.has(batch_key)) {
    held_rows.use(batch_key).give_up();
  }
}

bool DeviceGroup::may_hold_rows(const Batching& batching) const {
  return device.is_cuda() && batching.enabled() && batching.sizes.empty() && !batching.padding;
}

std::size_t DeviceGroup::padded_rows(const std::string& batch_key, std::size_t rows, const Batching& batching) {
  return holds_rows(batch_key, batching) ? held_rows.use(batch_key).padded(rows) : batching.padded(rows);
}

void DeviceGroup::note_rows(const std::string& batch_key, const HeldRows::Run& run, std::chrono::nanoseconds part,
                            const Batching& batching) {
  if (batch_key.empty()) {
    return;
  }
  if (may_hold_rows(batching)) {
    held_rows.use(batch_key).record(run, batching.max_size);
  } else if (device == Device::cpu()) {
    rows_per_run.use(batch_key).record(run.rows, part);
  }
}

bool Dispatcher::joins_others(const Request& request) const {
  return !request.batch_key_.empty() && joining_.joins(request.batch_key_, request.caller);
}

std::size_t Dispatcher::rows_waiting(DeviceGroup& group, const Request& alike) {
  std::size_t rows = 0;
  std::size_t left = std::min<std::size_t>(8 * options_.batching.max_size, 512);  // others could be many
  group.each_waiting(waiting_.for_any(), [&](const Request& request) ORTMULTI_REQUIRES(mutex_) {
    rows += request.batch_key_ == alike.batch_key_ ? request.size_.rows : 0;
    return rows < options_.batching.max_size && --left > 0;
  });
  return rows;
}

bool Dispatcher::may_wait_for_more(DeviceGroup& group, const Request& request) const {
  const std::string& key = request.batch_key_;
  if (!joins_others(request) || !group.holds_rows(key, options_.batching)) {
    return false;
  }
  const std::chrono::nanoseconds wait = 2 * group.run_time.value();  // for the end of a run, and its own
  const bool late = request.deadline && (!group.knows_run_time() || Clock::now() + wait > *request.deadline);
  return !late && std::ranges::any_of(group.workers, [&key](const Worker* worker) {
    return worker->busy() && !worker->batch.empty() && worker->batch.front()->batch_key_ == key;
  });
}

bool Dispatcher::waits_for_more(DeviceGroup& group, const Request& request) {
  return may_wait_for_more(group, request) &&
         rows_waiting(group, request) < group.padded_rows(request.batch_key_, 1, options_.batching);
}

void Dispatcher::begin_full_runs(const Request& request) {
  for (const auto& group : groups_) {
    if (group->usable() && group->is_for(request) && group->holds_rows(request.batch_key_, options_.batching) &&
        !waits_for_more(*group, request)) {
      give_waiting(*group);
    }
  }
}

}  // namespace ortmulti
