#include "core/policy/launch_times.hpp"

#include <algorithm>

#include "core/policy/numbers.hpp"

namespace ortmulti {
namespace {

constexpr std::size_t max_shapes = 1000;

}  // namespace

LaunchTimes::Launch LaunchTimes::begin(Clock::time_point now, const void* shape) {
  if (count_++ == 0) {
    since_ = now;
    under_way_ = {};
  }
  const auto known = times_.find(shape);
  const Clock::duration expected = known == times_.end() ? Clock::duration() : known->second;
  under_way_ += expected;
  return {now, known == times_.end() ? now : since_ + under_way_, shape, expected};
}

void LaunchTimes::end(Clock::time_point now, const Launch& launch, std::optional<Clock::time_point> woke) {
  --count_;
  under_way_ -= launch.expected;
  Clock::duration taken = std::max<Clock::duration>(now - std::max(since_, launch.launched), {});
  if (woke && now - *woke < *numbers::launches_min_margin / 2) {
    taken /= 2;
  }
  since_ = std::max(since_, now);
  if (times_.size() == max_shapes) {
    times_.clear();
  }
  const auto [found, first] = times_.emplace(launch.shape, taken);
  if (!first) {
    // Rather too short: who wakes up late is late with the answer, and who wakes up early waits a little.
    Clock::duration& known = found->second;
    known += (taken - known) / (taken < known ? 4 : 16);
  }
}

WakeTime::Clock::duration WakeTime::margin(Clock::duration left) const noexcept {
  return std::max<Clock::duration>(*numbers::launches_min_margin, 2 * late_) + left / 16;
}

std::optional<WakeTime::Clock::time_point> WakeTime::before(Clock::time_point now, Clock::time_point end) noexcept {
  const Clock::time_point wake = end - margin(end - now);
  if (wake - now < *numbers::launches_shortest_sleep) {
    late_ -= late_ / 64;  // tried again some time
    return std::nullopt;
  }
  return wake;
}

void WakeTime::record(Clock::time_point wake, Clock::time_point woke) noexcept {
  const Clock::duration late = std::max<Clock::duration>(woke - wake, {});
  late_ = late > late_ ? late : late_ - (late_ - late) / 16;
}

}  // namespace ortmulti
