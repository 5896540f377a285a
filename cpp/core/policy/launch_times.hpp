#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <optional>

namespace ortmulti {

/// Estimates when a GPU will have done what is launched on it one after another, from how long the same took before.
/// Without clock, thread or lock.
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
  std::map<const void*, Clock::duration> times_;
  Clock::duration under_way_{};  // what launches that have not ended will take
  std::size_t count_ = 0;        // of these
  Clock::time_point since_;      // when the first of these began
};

/// When a thread that sleeps until an uncertain time is to be woken: a little earlier, as far as the system allows.
/// Without clock, thread or lock.
class WakeTime {
 public:
  using Clock = LaunchTimes::Clock;

  /// How long before the end to wake up, if so much is left until then.
  Clock::duration margin(Clock::duration left) const noexcept;
  /// Nothing if it is not worth to sleep.
  std::optional<Clock::time_point> before(Clock::time_point now, Clock::time_point end) noexcept;
  /// Notes when a thread that was to be woken at `wake` woke up.
  void record(Clock::time_point wake, Clock::time_point woke) noexcept;

 private:
  Clock::duration late_{};  // how late it woke up recently
};

}  // namespace ortmulti
