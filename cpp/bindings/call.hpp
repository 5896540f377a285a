#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "core/base/timeline.hpp"
#include "core/pool/request.hpp"

namespace ortmulti::bindings {

inline std::chrono::nanoseconds to_duration(double seconds) {
  constexpr double most = 1e8;  // three years: what is longer would not fit into the clock's numbers
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(std::min(seconds, most)));
}

inline Request::Clock::time_point after(double seconds) { return Request::Clock::now() + to_duration(seconds); }

/// How a pool's request is to run: `Call` in Python.
struct Call {
  pybind11::object run_options = pybind11::none();
  std::string device;
  std::optional<double> timeout;  ///< Seconds.
  bool outputs_on_device = false;
  std::shared_ptr<Timeline> timeline;

  void apply_to(Request& request) const {
    if (timeout) {
      request.deadline = after(*timeout);
    }
    request.outputs_on_device = outputs_on_device;
    request.timeline = timeline;
  }
};

}  // namespace ortmulti::bindings
