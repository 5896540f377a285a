#pragma once

#include <cstddef>

#include "core/policy/numbers.hpp"

namespace ortmulti {

/// Decides whether a run on the CPU has one thread, beside others, or all cores. Runs of both kinds at the same time
/// take cores from each other, so a moment without others changes nothing. Without clock, thread or lock.
class SideBySide {
 public:
  /// For a run that begins. `at_once`: how many may be under way; `requests`: how many are there, with this one.
  bool choose(std::size_t at_once, std::size_t requests, std::size_t cores) noexcept {
    few_ = at_once > 1 && 2 * requests <= cores ? few_ + 1 : 0;
    return at_once > 1 && few_ < *numbers::in_flight_few_in_a_row;
  }

 private:
  std::size_t few_ = 0;  // runs in a row that began beside so few others that cores would be idle
};

}  // namespace ortmulti
