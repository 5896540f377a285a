#include "core/cuda/capture_lock.hpp"

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace ortmulti {
namespace {

struct Uses {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t brief = 0;
  std::size_t lasting = 0;
  bool exclusive = false;       // something is captured
  bool exclusive_next = false;  // as soon as the brief uses have ended

  std::size_t& count(CaptureLock::Use use) { return use == CaptureLock::Use::brief ? brief : lasting; }
  bool closed() const { return exclusive || exclusive_next; }
};

Uses& uses() {
  static auto& uses = *new Uses();  // NOLINT(cppcoreguidelines-owning-memory): needed up to exit
  return uses;
}

// How many uses of this thread are within each other.
std::size_t& nested() {
  thread_local std::size_t nested = 0;
  return nested;
}

}  // namespace

CaptureLock::Shared::Shared(bool of_cuda, Use use) : of_cuda_(of_cuda), use_(use) {
  if (of_cuda_ && nested()++ == 0) {
    Uses& all = uses();
    std::unique_lock lock(all.mutex);
    all.changed.wait(lock, [&all] { return !all.closed(); });
    ++all.count(use_);
  }
}

CaptureLock::Shared::~Shared() {
  if (of_cuda_ && --nested() == 0) {
    Uses& all = uses();
    const std::lock_guard lock(all.mutex);
    --all.count(use_);
    if (all.exclusive_next) {
      all.changed.notify_all();
    }
  }
}

std::optional<CaptureLock::Exclusive> CaptureLock::Exclusive::try_lock() {
  if (nested() != 0) {
    return std::nullopt;
  }
  Uses& all = uses();
  std::unique_lock lock(all.mutex);
  all.changed.wait(lock, [&all] { return !all.closed(); });
  if (all.lasting != 0) {
    return std::nullopt;
  }
  all.exclusive_next = true;
  all.changed.wait(lock, [&all] { return all.brief == 0; });
  all.exclusive_next = false;
  all.exclusive = true;
  nested() = 1;
  return Exclusive();
}

CaptureLock::Exclusive::Exclusive(Exclusive&& other) noexcept : held_(std::exchange(other.held_, false)) {}

CaptureLock::Exclusive::~Exclusive() {
  if (held_) {
    nested() = 0;
    Uses& all = uses();
    const std::lock_guard lock(all.mutex);
    all.exclusive = false;
    all.changed.notify_all();
  }
}

struct DeviceSyncGuard::Queue {
  // Work of one kind that came while another kind was under way, or waited.
  struct Group {
    Work work;
    std::size_t size = 0;
    bool admitted = false;
  };

  std::mutex mutex;
  std::condition_variable changed;
  Work work = Work::may_capture;  // of what is under way
  std::size_t under_way = 0;
  std::deque<std::shared_ptr<Group>> waiting;

  void enter(Work wanted) {
    std::unique_lock lock(mutex);
    const bool beside_its_kind = wanted != Work::both;
    if (waiting.empty() && (under_way == 0 || (work == wanted && beside_its_kind))) {
      work = wanted;
      ++under_way;
      return;
    }
    if (waiting.empty() || waiting.back()->work != wanted || !beside_its_kind) {
      waiting.push_back(std::make_shared<Group>(Group{wanted}));
    }
    const std::shared_ptr<Group> group = waiting.back();
    ++group->size;
    changed.wait(lock, [&group] { return group->admitted; });
  }

  void leave() {
    const std::lock_guard lock(mutex);
    if (--under_way == 0 && !waiting.empty()) {
      Group& next = *waiting.front();
      work = next.work;
      under_way = next.size;
      next.admitted = true;
      waiting.pop_front();
      changed.notify_all();
    }
  }
};

DeviceSyncGuard::Queue& DeviceSyncGuard::queue_of(int device) {
  static std::mutex mutex;
  static auto& queues = *new std::map<int, Queue>();  // NOLINT(cppcoreguidelines-owning-memory): needed up to exit
  const std::lock_guard lock(mutex);
  return queues[device];
}

DeviceSyncGuard::DeviceSyncGuard(const Device& device, Work work) {
  if (device.is_cuda()) {
    queue_ = &queue_of(device.index);
    queue_->enter(work);
  }
}

DeviceSyncGuard::~DeviceSyncGuard() {
  if (queue_ != nullptr) {
    queue_->leave();
  }
}

}  // namespace ortmulti
