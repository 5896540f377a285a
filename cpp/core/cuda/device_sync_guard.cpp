#include "core/cuda/device_sync_guard.hpp"

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

namespace ortmulti {

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
