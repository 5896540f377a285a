#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>

#include "bindings/gil.hpp"

namespace ortmulti::bindings {

/// How long a signal may wait until Python sees it.
constexpr std::chrono::milliseconds signal_interval{50};

inline std::chrono::nanoseconds to_duration(double seconds) {
  constexpr double most = 1e8;  // three years: what is longer would not fit into the clock's numbers
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(std::min(seconds, most)));
}

inline std::chrono::steady_clock::time_point after(double seconds) {
  return std::chrono::steady_clock::now() + to_duration(seconds);
}

/// Raises what the handler of a signal has raised, such as KeyboardInterrupt.
inline void check_signals() {
  if (PyErr_CheckSignals() != 0) {
    throw pybind11::error_already_set();
  }
}

/// Calls `done(until)` without the GIL until it returns true, or the timeout of so many seconds is over; it may wait
/// until that time. Signals are handled in between: what these raise ends the wait. Returns what `done` returned last.
bool wait_until(const auto& done, std::optional<double> timeout = std::nullopt) {
  const auto give_up = after(timeout.value_or(std::numeric_limits<double>::max()));
  for (;;) {
    {
      const ReleaseGil nogil;
      const auto now = std::chrono::steady_clock::now();
      if (const bool is_done = done(std::min(give_up, now + signal_interval)); is_done || now >= give_up) {
        return is_done;
      }
    }
    check_signals();
  }
}

}  // namespace ortmulti::bindings
