#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <optional>

namespace ortmulti {

/// Estimates when a GPU will have done what is launched on it one after another, from how long the same took before.
/// Any thread may use it.
class LaunchTimes {
 public:
  using Clock = std::chrono::steady_clock;

  struct Launch {
    Clock::time_point launched;
    Clock::time_point expected_end;  ///< Not after `launched` where nothing is known.
    const void* shape = nullptr;
    Clock::duration expected{};
  };

  /// Notes a launch. `shape`: launches of one shape take equally long.
  Launch begin(Clock::time_point now, const void* shape);
  /// Notes that the GPU has done a launch, nearly in the order of the launches. `woke`: when a thread that slept
  /// meanwhile began to wait. If it had nothing to wait for, the GPU was done at an unknown time before that.
  void end(Clock::time_point now, const Launch& launch, std::optional<Clock::time_point> woke = std::nullopt);

 private:
  std::mutex mutex_;
  std::map<const void*, Clock::duration> times_;
  Clock::duration under_way_{};  // what launches that have not ended will take
  std::size_t count_ = 0;        // of these
  Clock::time_point since_;      // when the first of these began
};

/// Lets a thread sleep up to an uncertain time. It wakes up a little earlier, as far as the system allows.
class Sleeper {
 public:
  using Clock = LaunchTimes::Clock;

  /// How long before the time to wake up, if so much is left until then.
  Clock::duration margin(Clock::duration left) const noexcept;
  /// Returns when it woke up; nothing if it did not sleep.
  std::optional<Clock::time_point> sleep_until(Clock::time_point until);

 private:
  Clock::duration late_{};  // how late it woke up recently
};

}  // namespace ortmulti
