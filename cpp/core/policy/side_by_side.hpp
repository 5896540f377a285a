#pragma once

#include <chrono>
#include <cstddef>

#include "core/policy/numbers.hpp"

namespace ortmulti {

/// Decides whether a run on the CPU has one thread, beside others, or all cores. Runs of both kinds at the same time
/// take cores from each other, so a moment without others changes nothing. Without clock, thread or lock.
class SideBySide {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// For a run that begins. `at_once`: how many may be under way; `requests`: how many are there, with this one.
  bool choose(Time now, std::size_t at_once, std::size_t requests, std::size_t cores) noexcept {
    if (at_once < 2) {
      return false;
    }
    if (2 * requests > cores) {
      last_ = now;
      few_ = 0;
      return true;
    }
    ++few_;
    return few_ < *numbers::in_flight_few_in_a_row && now - last_ < *numbers::in_flight_few_for;
  }

 private:
  Time last_;            // when a run began beside so many others that no core would be idle
  std::size_t few_ = 0;  // runs since then
};

}  // namespace ortmulti
