#include <algorithm>
#include <chrono>
#include <iterator>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "core/base/text.hpp"
#include "core/ort/library.hpp"
#include "core/weights/loader.hpp"

// What other processes have of a device's weights.
namespace ortmulti {
namespace {

void warn_of_silence(const WeightPlan& plan, std::chrono::steady_clock::duration silence, const std::string& advice) {
  onnxruntime_log().push({ORT_LOGGING_LEVEL_WARNING, "ortmulti", "", "",
                          "another process loads the weights of " + in_quotes(plan.list.sources.front()->name()) +
                              ", and has made no progress for " +
                              std::to_string(std::chrono::duration_cast<std::chrono::seconds>(silence).count()) +
                              " s: " + advice});
}

}  // namespace

void WeightLoader::find_others() noexcept {
  try {
    look_for_others();
  } catch (const std::exception& problem) {
    note_not_shared(timeline_.get(), problem);
    for (Slot& slot : slots_) {
      slot.key.clear();
      slot.lock.reset();
    }
  }
}

void WeightLoader::look_for_others() {
  static std::once_flag cleaned;
  std::call_once(cleaned, remove_abandoned);
  const int driver = startup_.driver_version().value_or(0);
  std::vector<Slot*> missing;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].key = share_key(*weights_.plan, startup_.describe(devices_[i]), driver);
    missing.push_back(&slots_[i]);
  }
  missing = ask_others(missing);
  others_offer_ = missing.size() < slots_.size();
  // All processes in the same order: no two of them wait for each other.
  std::ranges::sort(missing, {}, &Slot::key);
  if (!std::ranges::all_of(missing, [this](Slot* slot) { return lock(*slot); })) {
    return;
  }
  static_cast<void>(ask_others(missing));
}

std::vector<WeightLoader::Slot*> WeightLoader::ask_others(const std::vector<Slot*>& slots) {
  std::vector<std::string> keys;
  std::ranges::transform(slots, std::back_inserter(keys), &Slot::key);
  std::vector<std::optional<Offered>> found = find_offers(keys);
  std::vector<Slot*> missing;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    slots[i]->other = std::move(found[i]);
    if (slots[i]->other) {
      slots[i]->lock.reset();
    } else {
      missing.push_back(slots[i]);
    }
  }
  return missing;
}

bool WeightLoader::lock(Slot& slot) {
  slot.lock = std::make_unique<ShareLock>(slot.key);
  if (slot.lock->try_lock()) {
    return true;
  }
  const ScopedSpan span(timeline_.get(), "wait for another process's weights");
  bool said = false;
  while (!slot.lock->try_lock()) {
    if (stop_.stop_requested()) {
      return false;
    }
    const auto silence = slot.lock->silence();
    if (silence >= weights_.patience) {
      if (slot.lock->take_away()) {
        warn_of_silence(*weights_.plan, silence, "it is not waited for any longer, and the weights are loaded again");
      }
    } else if (!said && silence >= weights_.patience / 6) {
      said = true;
      warn_of_silence(*weights_.plan, silence, "it may be stopped, or wait for its disk: continue it, or end it");
    }
    renew_locks();  // others wait for those that this process has already
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

void WeightLoader::renew_locks() {
  const std::lock_guard lock(mutex_);
  for (const Slot& slot : slots_) {
    if (slot.lock) {
      slot.lock->renew();
    }
  }
}

bool WeightLoader::map_other(std::size_t index, Offered& other) noexcept {
  Slot& slot = slots_[index];
  try {
    auto store =
        std::make_shared<CudaWeightStore>(startup_, devices_[index], weights_.plan, timeline_.get(), slot.key, &other);
    store->share(timeline_.get(), std::move(other.memory));
    store->offer();
    const std::lock_guard lock(mutex_);
    slot.store = std::move(store);
    slot.filled = true;
    slot.taken = true;
  } catch (const std::exception& problem) {
    note_not_shared(timeline_.get(), problem);
  }
  const std::lock_guard lock(mutex_);
  slot.other.reset();
  changed_.notify_all();
  return slot.filled;
}

}  // namespace ortmulti
