#include "core/cuda/capture_lock.hpp"

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

namespace ortmulti {

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

std::uint64_t add_shape(std::uint64_t shapes, const Ort::Value& value) {
  constexpr std::uint64_t prime = 0x100000001b3;
  if (value == nullptr || !value.IsTensor()) {
    return shapes * prime;
  }
  for (const std::int64_t size : value.GetTensorTypeAndShapeInfo().GetShape()) {
    shapes = (shapes ^ static_cast<std::uint64_t>(size)) * prime;
  }
  return (shapes ^ 0xff) * prime;  // so that dimensions do not move from one value to the next
}

}  // namespace ortmulti
