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
  bool sole = false;       // something is captured
  bool sole_next = false;  // as soon as the brief uses have ended

  std::size_t& count(CudaUse::Kind kind) { return kind == CudaUse::Kind::brief ? brief : lasting; }
  bool closed() const { return sole || sole_next; }
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

CudaUse::CudaUse(bool of_cuda, Kind kind) : of_cuda_(of_cuda), kind_(kind) {
  if (of_cuda_ && nested()++ == 0) {
    Uses& all = uses();
    std::unique_lock lock(all.mutex);
    all.changed.wait(lock, [&all] { return !all.closed(); });
    ++all.count(kind_);
  }
}

CudaUse::~CudaUse() {
  if (of_cuda_ && --nested() == 0) {
    Uses& all = uses();
    const std::lock_guard lock(all.mutex);
    --all.count(kind_);
    if (all.sole_next) {
      all.changed.notify_all();
    }
  }
}

std::optional<SoleUse> SoleUse::try_begin() {
  if (nested() != 0) {
    return std::nullopt;
  }
  Uses& all = uses();
  std::unique_lock lock(all.mutex);
  all.changed.wait(lock, [&all] { return !all.closed(); });
  if (all.lasting != 0) {
    return std::nullopt;
  }
  all.sole_next = true;
  all.changed.wait(lock, [&all] { return all.brief == 0; });
  all.sole_next = false;
  all.sole = true;
  nested() = 1;
  return SoleUse();
}

SoleUse::SoleUse(SoleUse&& other) noexcept : held_(std::exchange(other.held_, false)) {}

SoleUse::~SoleUse() {
  if (held_) {
    nested() = 0;
    Uses& all = uses();
    const std::lock_guard lock(all.mutex);
    all.sole = false;
    all.changed.notify_all();
  }
}

struct CaptureGuard::Turns {
  // Work of one kind that came while the other kind was under way, or waited.
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
    if (waiting.empty() && (under_way == 0 || work == wanted)) {
      work = wanted;
      ++under_way;
      return;
    }
    if (waiting.empty() || waiting.back()->work != wanted) {
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

CaptureGuard::Turns& CaptureGuard::turns_of(int device) {
  static std::mutex mutex;
  static auto& turns = *new std::map<int, Turns>();  // NOLINT(cppcoreguidelines-owning-memory): needed up to exit
  const std::lock_guard lock(mutex);
  return turns[device];
}

CaptureGuard::CaptureGuard(const Device& device, Work work) {
  if (device.is_cuda()) {
    turns_ = &turns_of(device.index);
    turns_->enter(work);
  }
}

CaptureGuard::~CaptureGuard() {
  if (turns_ != nullptr) {
    turns_->leave();
  }
}

}  // namespace ortmulti
