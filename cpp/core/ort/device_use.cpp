#include "core/ort/device_use.hpp"

#include <atomic>
#include <map>
#include <new>
#include <set>
#include <utility>

#include "core/base/fork.hpp"
#include "core/base/mutex.hpp"
#include "core/cuda/device_sync_guard.hpp"

namespace ortmulti {

// The time on a device from one thread's end to the next one's. The uses that began in a period keep it, and the period
// before does.
struct DeviceUse::Period {
  std::shared_ptr<const DeviceSyncGuard> guard;  // of the thread at its end
  std::shared_ptr<Period> next;

  Period() = default;
  ~Period() {  // one by one: during a long use many threads may have ended
    for (auto rest = std::move(next); rest && rest.use_count() == 1;) {
      rest = std::shared_ptr<Period>(std::move(rest->next));
    }
  }
  Period(const Period&) = delete;
  Period& operator=(const Period&) = delete;
  Period(Period&&) = delete;
  Period& operator=(Period&&) = delete;
};

struct DeviceUse::Periods {
  Mutex mutex;
  std::map<int, std::shared_ptr<Period>> current ORTMULTI_GUARDED_BY(mutex);
  std::atomic<std::uint64_t> ended_threads{0};

  std::shared_ptr<const Period> get(int device) {
    const MutexLock lock(mutex);
    std::shared_ptr<Period>& period = current[device];
    if (!period) {
      period = std::make_shared<Period>();
    }
    return period;
  }

  void end(int device, std::shared_ptr<const DeviceSyncGuard> guard) {
    auto next = std::make_shared<Period>();
    std::shared_ptr<Period> ended;  // goes without the lock
    const MutexLock lock(mutex);
    ended = std::exchange(current[device], next);
    ended->guard = std::move(guard);
    ended->next = std::move(next);
  }
};

// A thread that used a GPU. Thread-locals die in reverse order: End, made after a use, then ONNX Runtime's own object,
// then this one, made before.
class DeviceUse::Thread : NonCopyable {
 public:
  static Thread& current() {
    thread_local Thread thread;
    return thread;
  }

  ~Thread() {
    if (devices_.empty() || generation_ != fork_generation()) {
      return;
    }
    ++periods().ended_threads;  // before a guard may go
    for (auto& [device, guard] : guards_) {
      try {
        periods().end(device, std::move(guard));
      } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): then a capture may fail
      }
    }
  }

  void uses(int device) { devices_.insert(device); }

  // A use that failed may not have come as far as ONNX Runtime's object. So there is a second one.
  static void has_used() {
    thread_local const End end;
    static_cast<void>(end);
  }
  static void has_run() {
    thread_local const End end;
    static_cast<void>(end);
  }

 private:
  struct End : NonCopyable {
    ~End() { current().begin_end(); }
  };

  void begin_end() noexcept {
    if (generation_ != fork_generation()) {
      return;  // what it would wait for is the parent's
    }
    for (const int device : devices_) {
      try {
        if (auto& guard = guards_[device]; !guard) {
          guard =
              std::make_shared<const DeviceSyncGuard>(Device::cuda(device), DeviceSyncGuard::Work::waits_for_device);
        }
      } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): then a capture may fail
      }
    }
    ++periods().ended_threads;
  }

  const unsigned generation_ = fork_generation();
  std::set<int> devices_;
  std::map<int, std::shared_ptr<const DeviceSyncGuard>> guards_;
};

auto DeviceUse::periods() -> Periods& { return process_singleton<Periods>(); }

std::uint64_t DeviceUse::ended_threads() {
  static_cast<void>(Thread::current());
  return periods().ended_threads.load();
}

DeviceUse::DeviceUse(const Device& device) : period_(periods().get(device.index)) {
  Thread::current().uses(device.index);
}

DeviceUse::~DeviceUse() { Thread::has_used(); }

void DeviceUse::ran() { Thread::has_run(); }

}  // namespace ortmulti
