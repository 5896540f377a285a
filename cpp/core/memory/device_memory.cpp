#include "core/memory/device_memory.hpp"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "core/base/fork.hpp"

namespace ortmulti::device_memory {
namespace {

struct Keeper {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::weak_ptr<HasMemory>> known;
  using Counted = std::array<std::atomic<std::int64_t>, memory_uses.size()>;
  std::array<Counted, 64> counted{};  // by GPU: more are on no host
  std::thread thread;
  bool ends = false;
  std::atomic<bool> awake{false};
  std::mutex giving_back;

  // Null for what is no GPU.
  Counted* counted_on(const Device& device) noexcept {
    const auto index = static_cast<std::size_t>(device.index);
    return device.is_cuda() && index < counted.size() ? &counted.at(index) : nullptr;
  }

  std::vector<std::shared_ptr<HasMemory>> all() {
    const std::lock_guard lock(mutex);
    std::erase_if(known, [](const auto& one) { return one.expired(); });
    std::vector<std::shared_ptr<HasMemory>> held;
    for (const auto& one : known) {
      if (auto there = one.lock()) {
        held.push_back(std::move(there));
      }
    }
    return held;
  }

  void keep() {
    std::unique_lock lock(mutex);
    while (!ends) {
      changed.wait(lock, [this] { return ends || awake.load(); });
      if (changed.wait_for(lock, look_every, [this] { return ends; })) {
        return;
      }
      awake.store(false);
      lock.unlock();
      bool watched = false;
      for (const auto& one : all()) {
        watched = one->give_back_surplus() || watched;
      }
      lock.lock();
      awake.store(awake.load() || watched);
    }
  }
};

Keeper& keeper() { return process_singleton<Keeper>(); }

}  // namespace

void add(const std::shared_ptr<HasMemory>& has) {
  const std::lock_guard lock(keeper().mutex);
  keeper().known.push_back(has);
}

void count(const Device& device, MemoryUse use, std::int64_t bytes) noexcept {
  if (auto* const counted = keeper().counted_on(device)) {
    counted->at(static_cast<std::size_t>(use)) += bytes;
  }
}

MemoryUses uses(const Device& device) {
  const auto all = keeper().all();  // freed without the lock, as in give_back()
  MemoryUses uses{};
  if (const auto* const counted = keeper().counted_on(device)) {
    std::ranges::transform(*counted, uses.begin(),
                           [](const auto& bytes) { return static_cast<std::uint64_t>(bytes.load()); });
  }
  for (const auto& one : all) {
    one->add_uses(device, uses);
  }
  return uses;
}

void wake() noexcept {
  Keeper& all = keeper();
  if (all.awake.exchange(true)) {
    return;
  }
  const std::lock_guard lock(all.mutex);
  if (!all.thread.joinable() && !all.ends) {
    try {
      all.thread = std::thread(&Keeper::keep, &all);
      pthread_setname_np(all.thread.native_handle(), "ortmulti-memory");
    } catch (const std::system_error&) {
      all.awake.store(false);
    }
  }
  all.changed.notify_all();
}

void give_back(const Device& device) {
  const auto all = keeper().all();  // freed without the lock: the last reference to one may be here
  const std::lock_guard one_at_a_time(keeper().giving_back);
  for (const auto& one : all) {
    one->give_back(device, true);
  }
}

Retry lack(const Device& device) {
  return {.concerns = is_lack_of_memory, .times = 2, .prepare = [&device](std::size_t before) {
            if (before > 0) {
              std::this_thread::sleep_for(held_on);
            }
            give_back(device);
          }};
}

void end() {
  Keeper& all = keeper();
  {
    const std::lock_guard lock(all.mutex);
    all.ends = true;
    all.changed.notify_all();
  }
  if (all.thread.joinable()) {
    all.thread.join();
  }
}

}  // namespace ortmulti::device_memory
