#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "core/policy/numbers.hpp"

namespace ortmulti {

/// The average of recent durations: the mean of the first ones, then an exponential average, so that no first one,
/// which is often far longer than those that follow it, decides for long. Not for several threads at once.
class RecentAverage {
 public:
  void record(std::chrono::nanoseconds time) noexcept {
    ++count_;
    value_ += (time - value_) / static_cast<std::int64_t>(std::min<std::uint64_t>(count_, *numbers::average_runs));
  }
  /// 0 where nothing was recorded.
  std::chrono::nanoseconds value() const noexcept { return value_; }
  std::uint64_t count() const noexcept { return count_; }

 private:
  std::uint64_t count_ = 0;
  std::chrono::nanoseconds value_{0};
};

}  // namespace ortmulti
