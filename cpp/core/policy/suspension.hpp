#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>

#include "core/policy/numbers.hpp"

namespace ortmulti {

/// Decides whether a device gets no requests, but for probes, since several runs in a row failed there whose requests
/// succeeded elsewhere. Without clock, thread or lock.
class Suspension {
 public:
  using Time = std::chrono::steady_clock::time_point;

  bool active() const noexcept { return !why_.empty(); }
  /// Empty: it is not suspended.
  const std::string& why() const noexcept { return why_; }
  void end() { why_.clear(); }

  /// Whether so many failures more would suspend it.
  bool is_near(std::size_t more) const noexcept { return failures_ + more >= *numbers::suspension_max_failures; }
  /// Notes such a failure. `others`: whether other devices get requests. Returns whether it is suspended from now on.
  bool fail(Time now, const std::string& error, bool others) {
    ++failures_;
    if (active() || !others || !is_near(0)) {
      return false;
    }
    why_ = std::to_string(failures_) +
           " runs in a row failed here and succeeded on other devices; the last error: " + error;
    failures_ = 0;
    pause_ = *numbers::suspension_first_pause;
    probes(now);
    return true;
  }
  /// Notes a run that succeeded; `probe`: it began while the device was suspended. Returns whether that ended it.
  bool succeed(bool probe) {
    failures_ = 0;
    const bool ended = probe && active();
    if (ended) {
      end();
    }
    return ended;
  }

  bool probe_due(Time now) const noexcept { return now >= next_probe_; }
  void probes(Time now) { next_probe_ = now + pause_; }
  void probe_failed(Time now) {
    pause_ = std::min<std::chrono::nanoseconds>(2 * pause_, *numbers::suspension_longest_pause);
    probes(now);
  }

 private:
  std::string why_;
  std::size_t failures_ = 0;  // in a row
  std::chrono::nanoseconds pause_{0};
  Time next_probe_;
};

}  // namespace ortmulti
