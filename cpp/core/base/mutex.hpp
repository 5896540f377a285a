#pragma once

#include <condition_variable>
#include <mutex>

#include "core/base/non_copyable.hpp"

// Who needs which mutex, for Clang's thread safety analysis: `make lint` proves it. Other compilers do not read it.
#ifdef __clang__
#define ORTMULTI_ATTRIBUTE(attribute) __attribute__((attribute))
#else
#define ORTMULTI_ATTRIBUTE(attribute)
#endif
/// Says of a variable that it is used with this mutex held.
#define ORTMULTI_GUARDED_BY(mutex) ORTMULTI_ATTRIBUTE(guarded_by(mutex))
/// Says of a function that its caller holds this mutex.
#define ORTMULTI_REQUIRES(mutex) ORTMULTI_ATTRIBUTE(requires_capability(mutex))
/// Says of a function that its caller does not hold this mutex.
#define ORTMULTI_EXCLUDES(mutex) ORTMULTI_ATTRIBUTE(locks_excluded(mutex))
/// Says of a function that it returns a lock of this mutex.
#define ORTMULTI_RETURNS_LOCK_OF(mutex) ORTMULTI_ATTRIBUTE(acquire_capability(mutex)) ORTMULTI_UNCHECKED
/// Says of a function that the analysis cannot see which locks it holds.
#define ORTMULTI_UNCHECKED ORTMULTI_ATTRIBUTE(no_thread_safety_analysis)

namespace ortmulti {

class ORTMULTI_ATTRIBUTE(capability("mutex")) Mutex : NonCopyable {
 public:
  void lock() ORTMULTI_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  void unlock() ORTMULTI_ATTRIBUTE(release_capability()) { mutex_.unlock(); }

 private:
  friend class Condition;
  std::mutex mutex_;
};

/// Holds a mutex during its life, but for where it was unlocked.
class ORTMULTI_ATTRIBUTE(scoped_lockable) MutexLock : NonCopyable {
 public:
  explicit MutexLock(Mutex& mutex) ORTMULTI_ATTRIBUTE(acquire_capability(mutex)) : lock_(mutex) {}
  ~MutexLock() ORTMULTI_ATTRIBUTE(release_capability()) = default;
  void lock() ORTMULTI_ATTRIBUTE(acquire_capability()) { lock_.lock(); }
  void unlock() ORTMULTI_ATTRIBUTE(release_capability()) { lock_.unlock(); }

 private:
  std::unique_lock<Mutex> lock_;
};

/// Gives a mutex that is held to others during its life.
class ORTMULTI_ATTRIBUTE(scoped_lockable) MutexUnlock : NonCopyable {
 public:
  explicit MutexUnlock(Mutex& mutex) ORTMULTI_ATTRIBUTE(release_capability(mutex)) : mutex_(mutex) { mutex.unlock(); }
  ~MutexUnlock() ORTMULTI_ATTRIBUTE(release_capability()) { mutex_.lock(); }

 private:
  Mutex& mutex_;
};

/// A std::condition_variable for a Mutex, which is held by whoever waits.
class Condition : NonCopyable {
 public:
  void notify_one() noexcept { condition_.notify_one(); }
  void notify_all() noexcept { condition_.notify_all(); }

  void wait(Mutex& mutex) ORTMULTI_REQUIRES(mutex) {
    Held held(mutex);
    condition_.wait(held.lock);
  }
  /// Waits until `done()`, which is called with the mutex held.
  void wait(Mutex& mutex, const auto& done) ORTMULTI_REQUIRES(mutex) ORTMULTI_UNCHECKED {
    while (!done()) {
      wait(mutex);
    }
  }
  /// Returns whether it was woken before `until`.
  bool wait_until(Mutex& mutex, const auto& until) ORTMULTI_REQUIRES(mutex) {
    Held held(mutex);
    return condition_.wait_until(held.lock, until) == std::cv_status::no_timeout;
  }
  /// Returns what `done()` says at last.
  bool wait_until(Mutex& mutex, const auto& until, const auto& done) ORTMULTI_REQUIRES(mutex) ORTMULTI_UNCHECKED {
    while (!done()) {
      if (!wait_until(mutex, until)) {
        return done();
      }
    }
    return true;
  }

 private:
  struct Held {
    explicit Held(Mutex& mutex) : lock(mutex.mutex_, std::adopt_lock) {}
    ~Held() { lock.release(); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    std::unique_lock<std::mutex> lock;
  };

  std::condition_variable condition_;
};

}  // namespace ortmulti
