#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <optional>

namespace ortmulti {

/// When a GPU will have done what is launched on it one behind another, judged by how long the same took before. From
/// any thread.
class LaunchTimes {
 public:
  using Clock = std::chrono::steady_clock;

  struct Launch {
    Clock::time_point launched;
    Clock::time_point expected_end;  ///< Not after `launched` where nothing is known.
    const void* shape = nullptr;
    Clock::duration expected{};
  };

  /// `shape`: what takes as long each time.
  Launch begin(Clock::time_point now, const void* shape);
  /// When the GPU has done it. In the order of the launches, or nearly so. `woke`: when a thread that slept meanwhile
  /// began to wait. If there was nothing to wait for, the GPU had done it at an unknown time before that.
  void end(Clock::time_point now, const Launch& launch, std::optional<Clock::time_point> woke = std::nullopt);

 private:
  std::mutex mutex_;
  std::map<const void*, Clock::duration> times_;
  Clock::duration under_way_{};  // what all that was launched and has not ended will take
  std::size_t count_ = 0;        // of these
  Clock::time_point since_;      // when the first of these began
};

/// A thread's sleep up to a time that is not quite certain: it wakes up early enough to find what ends then, as far as
/// the system lets it.
class Sleeper {
 public:
  using Clock = LaunchTimes::Clock;

  /// How long before `until` to wake up, given now.
  Clock::duration margin(Clock::duration left) const noexcept;
  /// When it woke up; nothing if it did not sleep.
  std::optional<Clock::time_point> sleep_until(Clock::time_point until);

 private:
  Clock::duration late_{};  // how much later than asked for it woke up lately
};

}  // namespace ortmulti
