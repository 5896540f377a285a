#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

namespace ortmulti {

/// Whether a session's CUDA graphs repay the memory that they hold: once requests wait for them, and now and then
/// later, its answers are counted for a moment with graphs, and for a moment without. All shapes together, since one of
/// many hardly changes the rate. Not thread-safe.
class GraphGain {
 public:
  using Clock = std::chrono::steady_clock;

  /// Whether runs are to be ordinary now.
  bool off() const noexcept { return with_.has_value(); }
  /// Takes note of a run's end. `measurable`: requests wait, and nothing else keeps the device busy. Returns whether
  /// the graphs are to be dropped, as ordinary runs answer about as many.
  bool record(Clock::time_point now, bool by_graph, bool measurable);
  /// What was measured last; empty: nothing.
  const std::string& why() const noexcept { return why_; }

 private:
  std::optional<double> rate(Clock::duration taken) const;

  std::optional<Clock::time_point> began_;  // to count
  std::size_t answers_ = 0;                 // since then
  std::optional<double> with_;              // answers a second by graphs, while those without are counted
  Clock::duration pause_{};                 // until the next time
  Clock::time_point next_;
  std::string why_;
};

}  // namespace ortmulti
