#include "core/base/memory_keeper.hpp"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "core/base/fork.hpp"

namespace ortmulti::memory_keeper {
namespace {

struct Keeper {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::weak_ptr<KeepsMemory>> known;
  std::thread thread;
  bool ends = false;
  std::atomic<bool> awake{false};
  std::mutex giving_back;

  std::vector<std::shared_ptr<KeepsMemory>> all() {
    const std::lock_guard lock(mutex);
    std::erase_if(known, [](const auto& one) { return one.expired(); });
    std::vector<std::shared_ptr<KeepsMemory>> held;
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

void add(const std::shared_ptr<KeepsMemory>& keeps) {
  const std::lock_guard lock(keeper().mutex);
  keeper().known.push_back(keeps);
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

}  // namespace ortmulti::memory_keeper
