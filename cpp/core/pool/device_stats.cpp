#include "core/pool/device_stats.hpp"

namespace ortmulti {
namespace {

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

std::string to_string(DeviceState state) {
  switch (state) {
    case DeviceState::starting:
      return "starting";
    case DeviceState::ready:
      return "ready";
    case DeviceState::failed:
      return "failed";
    case DeviceState::broken:
      return "broken";
    case DeviceState::removed:
      break;
  }
  return "removed";
}

}  // namespace ortmulti
