#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "core/base/device.hpp"
#include "core/ort/session.hpp"
#include "core/policy/sleep_level.hpp"
#include "core/pool/latency.hpp"

namespace ortmulti {

/// What has become of a device: its first session is on its way; it takes requests; no session of it came; it broke
/// later; it was removed.
enum class DeviceState { starting, ready, failed, broken, removed };

inline std::string to_string(DeviceState state) {
  constexpr std::array names = {"starting", "ready", "failed", "broken", "removed"};
  return names.at(static_cast<std::size_t>(state));
}

/// CUDA graphs of shapes that came again, beside a session's ordinary runs.
struct GraphCounts {
  std::size_t shapes = 0;    ///< That have one.
  std::size_t sessions = 0;  ///< Of the graphs.
  std::uint64_t bytes = 0;   ///< Of the device's memory that these took when they were made.
  std::string why_not;       ///< Why a shape got none, the last reason since a graph was made; empty for none.
  std::string why_sessions;  ///< What was measured to choose how many sessions a shape has; empty where nothing was.
};

/// What became of the requests that ran, or were to run, on one device.
struct DeviceStats {
  Device device;

  // The device as it is now.
  DeviceState state = DeviceState::ready;
  std::size_t sessions = 0;
  std::size_t busy = 0;       ///< Sessions that run something.
  std::size_t waiting = 0;    ///< Requests for this device alone.
  std::string broken;         ///< Why it failed or was taken out; empty where it did not and was not.
  std::string suspended;      ///< Reason for the suspension; empty: none.
  std::size_t in_flight = 0;  ///< Requests that may be under way at the same time.
  std::string why_in_flight;  ///< What was measured to choose that; empty where it was given, or nothing was measured.
  std::string why_padding;    ///< What elements of padded runs were measured to take; empty where nothing was.
  std::string why_rows;       ///< What was measured to choose how many rows are joined; empty where nothing was.
  GraphCounts graphs;
  std::optional<Session::Arena> arena;  ///< Of all sessions; none where nobody knows.
  SleepLevel level = SleepLevel::awake;

  // Counted. for_each_count() has them all.
  std::uint64_t done = 0;
  std::uint64_t failed = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t retried = 0;          ///< Tried again, mostly on another device: a run failed here, or this one broke.
  std::uint64_t runs = 0;             ///< Of the model; fewer than requests where these are batched.
  std::uint64_t graph_runs = 0;       ///< Those by a CUDA graph.
  std::uint64_t real_elements = 0;    ///< Of runs with padding, rows times length.
  std::uint64_t padded_elements = 0;  ///< What these runs had besides.
  std::uint64_t sleeps = 0;
  std::uint64_t wakes = 0;
  std::uint64_t trims = 0;   ///< Memory was given back though the device stayed awake.
  LatencyHistogram wake;     ///< How long its wakes took, from the request that asked for it.
  LatencyHistogram queue;    ///< From submitted to started, and until the session was free.
  LatencyHistogram copy;     ///< Copying inputs to the device and outputs from it.
  LatencyHistogram run;      ///< The rest of the time from started to ended.
  LatencyHistogram total;    ///< Total latency: from submitted to ended.
  SizeHistogram batch_size;  ///< Requests of each run.

  /// Calls `each` with the name and the member of every count: so counts are added up, and go to Python.
  static void for_each_count(const auto& each) {
    each("done", &DeviceStats::done);
    each("failed", &DeviceStats::failed);
    each("cancelled", &DeviceStats::cancelled);
    each("retried", &DeviceStats::retried);
    each("runs", &DeviceStats::runs);
    each("graph_runs", &DeviceStats::graph_runs);
    each("real_elements", &DeviceStats::real_elements);
    each("padded_elements", &DeviceStats::padded_elements);
    each("sleeps", &DeviceStats::sleeps);
    each("wakes", &DeviceStats::wakes);
    each("trims", &DeviceStats::trims);
    each("wake", &DeviceStats::wake);
    each("queue", &DeviceStats::queue);
    each("copy", &DeviceStats::copy);
    each("run", &DeviceStats::run);
    each("total", &DeviceStats::total);
    each("batch_size", &DeviceStats::batch_size);
  }

  /// Adds what the device did and does in another pool.
  void add(const DeviceStats& more);
};

}  // namespace ortmulti
