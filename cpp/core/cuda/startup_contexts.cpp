#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/fork.hpp"
#include "core/cuda/startup.hpp"

namespace ortmulti {

std::deque<int>::iterator CudaStartup::next_queued() {
  return held_for_.empty() ? queued_.begin()
                           : std::ranges::find_if(queued_, [this](int device) { return held_for_.contains(device); });
}

void CudaStartup::create_queued_contexts() {
  for (;;) {
    int device = -1;
    bool all = false;
    {
      std::unique_lock lock(contexts_mutex_);
      queue_moves_.wait(lock, [this] { return all_queued_ || queued_.empty() || next_queued() != queued_.end(); });
      all = all_queued_;
      if (!all && queued_.empty()) {
        starter_running_ = false;
        break;
      }
      device = all ? -1 : *next_queued();
    }
    int count = 0;
    try {
      if (all) {
        count = device_count();
      } else {
        create_context(device, nullptr);
      }
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): who waits for this context tries again, and reports it
    }
    const std::lock_guard lock(contexts_mutex_);
    if (all) {
      // In one step: a thread that needs a context finds the flag or the device. `join` may have taken the flag away.
      const int wanted = std::exchange(all_queued_, false) ? count : 0;
      for (int i = 0; i < wanted; ++i) {
        if (!has_context(i) && std::ranges::find(queued_, i) == queued_.end()) {
          queued_.push_back(i);
        }
      }
    } else if (const auto done = std::ranges::find(queued_, device); done != queued_.end()) {
      queued_.erase(done);
    }
    context_created_.notify_all();
  }
  context_created_.notify_all();
}

CudaStartup::Hold::Hold(CudaStartup& startup, int device)
    : startup_(startup), device_(device), generation_(fork_generation()) {
  const std::lock_guard lock(startup_.contexts_mutex_);
  startup_.held_for_.insert(device);
}

void CudaStartup::Hold::release() {
  if (released_.exchange(true) || generation_ != fork_generation()) {
    return;
  }
  const std::lock_guard lock(startup_.contexts_mutex_);
  startup_.held_for_.erase(startup_.held_for_.find(device_));  // one of those for the device
  startup_.queue_moves_.notify_all();
}

CUcontext CudaStartup::find_context(int device) const {
  const auto index = static_cast<std::size_t>(device);
  return device >= 0 && index < contexts_.size() ? contexts_[index].load(std::memory_order_acquire) : nullptr;
}

CUcontext CudaStartup::create_context(int device, Timeline* timeline) {
  const CUdevice cuda_device = handle(device);
  const std::string name = to_string(Device::cuda(device));
  const std::lock_guard creating(creating_context_);
  if (CUcontext created = find_context(device); created != nullptr) {
    return created;
  }
  if (static_cast<std::size_t>(device) >= max_devices) {
    throw Error(ErrorKind::device, name + " cannot be used: at most " + std::to_string(max_devices) +
                                       " devices are; set CUDA_VISIBLE_DEVICES to those that are needed");
  }
  CUcontext context = nullptr;
  const std::int64_t start_ns = steady_now_ns();
  const CUresult result = driver_->primary_ctx_retain(&context, cuda_device);
  remember({"context", start_ns, steady_now_ns(), this_thread(), name});
  hand_over(timeline);
  check(result, "creating the CUDA context of " + name);
  const std::lock_guard lock(contexts_mutex_);
  contexts_[static_cast<std::size_t>(device)].store(context, std::memory_order_release);
  return context;
}

CUcontext CudaStartup::wait_for_context(int device, Timeline* timeline) {
  initialize(timeline);
  handle(device);  // an error for one that does not exist
  {
    std::unique_lock lock(contexts_mutex_);
    const auto queued = [&] { return std::ranges::find(queued_, device) != queued_.end(); };
    if (!has_context(device) && (queued() || all_queued_)) {
      const ScopedSpan span(timeline, "wait for context", to_string(Device::cuda(device)));
      context_created_.wait(lock, [&] { return has_context(device) || (!queued() && !all_queued_); });
    }
  }
  CUcontext found = find_context(device);
  return found != nullptr ? found : create_context(device, timeline);
}

CUcontext CudaStartup::context(int device, Timeline* timeline) {
  CUcontext found = find_context(device);
  if (found == nullptr) {
    found = wait_for_context(device, timeline);
  } else {
    check_fork(started_generation_.load());
  }
  hand_over(timeline);
  return found;
}

CUcontext CudaStartup::make_current(int device, Timeline* timeline) {
  CUcontext found = context(device, timeline);
  exchange_current(found, device);
  return found;
}

CUcontext CudaStartup::exchange_current(CUcontext context, int device) {
  CUcontext before = nullptr;
  static_cast<void>(driver_->ctx_get_current(&before));
  if (before != context) {
    if (const CUresult result = driver_->ctx_set_current(context); result != CUDA_SUCCESS) {
      check(result, "using the CUDA context of " + to_string(Device::cuda(device)));
    }
  }
  return before;
}

}  // namespace ortmulti
