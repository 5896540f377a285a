#include "core/pool/launch_times.hpp"

#include <algorithm>
#include <thread>

namespace ortmulti {
namespace {

// To sleep for less than this is not worth it.
constexpr std::chrono::microseconds shortest_sleep{100};
constexpr std::chrono::microseconds min_margin{50};
constexpr std::size_t max_shapes = 1000;

}  // namespace

LaunchTimes::Launch LaunchTimes::begin(Clock::time_point now, const void* shape) {
  const std::lock_guard lock(mutex_);
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
  const std::lock_guard lock(mutex_);
  --count_;
  under_way_ -= launch.expected;
  Clock::duration taken = std::max<Clock::duration>(now - std::max(since_, launch.launched), {});
  if (woke && now - *woke < min_margin / 2) {
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

Sleeper::Clock::duration Sleeper::margin(Clock::duration left) const noexcept {
  return std::max<Clock::duration>(min_margin, 2 * late_) + left / 16;
}

std::optional<Sleeper::Clock::time_point> Sleeper::sleep_until(Clock::time_point until) {
  const Clock::time_point now = Clock::now();
  const Clock::time_point wake = until - margin(until - now);
  if (wake - now < shortest_sleep) {
    late_ -= late_ / 64;  // tried again some time
    return std::nullopt;
  }
  std::this_thread::sleep_until(wake);
  const Clock::time_point woke = Clock::now();
  const Clock::duration late = std::max<Clock::duration>(woke - wake, {});
  late_ = late > late_ ? late : late_ - (late_ - late) / 16;
  return woke;
}

}  // namespace ortmulti
