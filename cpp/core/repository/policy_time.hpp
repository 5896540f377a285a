#pragma once

#include <chrono>

#include "core/repository/repository.hpp"

// The repository's clock, in the policy's seconds.
namespace ortmulti {

// What pools do is not notified, so a wait for them looks again.
constexpr std::chrono::milliseconds looks_again{100};

inline double to_seconds(Repository::Clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

inline double time_now() { return to_seconds(Repository::Clock::now()); }

inline Repository::Clock::duration to_duration(double seconds) {
  return std::chrono::duration_cast<Repository::Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace ortmulti
