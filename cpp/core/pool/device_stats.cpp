#include "core/pool/device_stats.hpp"

#include <array>

namespace ortmulti {
namespace {

// In the order of the values.
constexpr std::array states = {"starting", "ready", "failed", "broken", "removed"};

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

}  // namespace ortmulti
