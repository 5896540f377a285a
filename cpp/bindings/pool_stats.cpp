#include "bindings/pool_stats.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace py = pybind11;

namespace ortmulti::bindings {
namespace {

// (bound, count) pairs.
template <typename Counts, typename Bound>
py::tuple to_buckets(const Counts& counts, const Bound& bound) {
  py::tuple buckets(counts.size());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    buckets[i] = py::make_tuple(bound(i), counts[i]);
  }
  return buckets;
}

py::object to_value(std::uint64_t count) { return py::int_(count); }

py::object to_value(const LatencyHistogram& histogram) {
  py::dict result;
  const auto seconds = [](std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; };
  result["count"] = histogram.count();
  result["sum"] = seconds(histogram.sum_ns());
  result["max"] = seconds(histogram.max_ns());
  result["p50"] = seconds(histogram.quantile_ns(0.5));
  result["p95"] = seconds(histogram.quantile_ns(0.95));
  result["p99"] = seconds(histogram.quantile_ns(0.99));
  result["p999"] = seconds(histogram.quantile_ns(0.999));
  result["buckets"] = to_buckets(histogram.counts_up_to_bounds(), [](std::size_t i) {
    return static_cast<double>(LatencyHistogram::bounds_ns[i]) / 1e9;
  });
  return result;
}

py::object to_value(const SizeHistogram& histogram) {
  py::dict result;
  result["count"] = histogram.count();
  result["sum"] = histogram.sum();
  result["buckets"] = to_buckets(histogram.counts_up_to_bounds(), [](std::size_t i) { return std::size_t{1} << i; });
  return result;
}

}  // namespace

py::dict to_states(const PoolStats& stats) {
  py::dict states;
  for (const DeviceStats& device : stats.devices) {
    states[py::str(to_string(device.device))] = py::make_tuple(to_string(device.state), device.broken);
  }
  return states;
}

py::dict to_dict(const PoolStats& stats) {
  py::list devices;
  for (const DeviceStats& device : stats.devices) {
    py::dict entry;
    entry["device"] = to_string(device.device);
    entry["state"] = to_string(device.state);
    entry["sessions"] = device.sessions;
    entry["busy"] = device.busy;
    entry["waiting"] = device.waiting;
    entry["broken"] = device.broken;
    entry["suspended"] = device.suspended;
    entry["asleep"] = device.level == SleepLevel::awake ? "" : to_string(device.level);
    entry["in_flight"] = device.in_flight;
    entry["why_in_flight"] = device.why_in_flight;
    DeviceStats::for_each_count([&](const char* name, auto count) { entry[name] = to_value(device.*count); });
    devices.append(std::move(entry));
  }
  py::dict result;
  result["devices"] = devices;
  result["waiting"] = stats.waiting;
  result["rejected"] = stats.rejected;
  result["cancelled_waiting"] = stats.cancelled_waiting;
  result["failed_waiting"] = stats.failed_waiting;
  result["unbatched"] = stats.unbatched;
  result["why_unbatched"] = stats.why_unbatched;
  return result;
}

}  // namespace ortmulti::bindings
