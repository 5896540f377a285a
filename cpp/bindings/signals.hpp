#pragma once

#include <pybind11/pybind11.h>

#include <chrono>

#include "bindings/gil.hpp"
#include "bindings/python_runner.hpp"

namespace ortmulti::bindings {

/// How long a signal may wait until Python sees it.
constexpr std::chrono::milliseconds signal_interval{50};

/// Raises what the handler of a signal has raised, such as KeyboardInterrupt.
inline void check_signals() {
  if (PyErr_CheckSignals() != 0) {
    throw pybind11::error_already_set();
  }
}

/// Calls `done` without the GIL until it returns true; it may wait for up to signal_interval. Signals are handled in
/// between: what these raise ends the wait.
template <typename Done>
void wait_until(const Done& done) {
  for (;;) {
    {
      const ReleaseGil nogil;
      if (done()) {
        return;
      }
    }
    check_signals();
    end_runs();
  }
}

}  // namespace ortmulti::bindings
