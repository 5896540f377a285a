#include "core/pool/device_stats.hpp"

#include <algorithm>
#include <array>

#include "core/base/error.hpp"

namespace ortmulti {
namespace {

// In the order of the values.
constexpr std::array states = {"starting", "ready", "failed", "broken", "removed"};
constexpr std::array levels = {"session", "weights", "awake"};

void merge(std::uint64_t& count, std::uint64_t more) { count += more; }

template <typename Histogram>
void merge(Histogram& histogram, const Histogram& more) {
  histogram.merge(more);
}

}  // namespace

void DeviceStats::add(const DeviceStats& more) {
  busy += more.busy;
  waiting += more.waiting;
  for_each_count([&](const char* /*name*/, auto count) { merge(this->*count, more.*count); });
}

std::string to_string(DeviceState state) { return states.at(static_cast<std::size_t>(state)); }

std::string to_string(SleepLevel level) { return levels.at(static_cast<std::size_t>(level)); }

SleepLevel parse_sleep_level(const std::string& name) {
  const auto found = std::find(levels.begin(), levels.end(), name);
  if (found == levels.end()) {
    throw Error(ErrorKind::invalid_argument, "a level of sleep is 'weights' or 'session', not '" + name + "'");
  }
  return static_cast<SleepLevel>(found - levels.begin());
}

}  // namespace ortmulti
