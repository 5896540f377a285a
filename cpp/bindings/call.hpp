#pragma once

#include <pybind11/stl.h>

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

/// How a pool's request is to run: ortmulti.pool.call.CoreCall, or None.
struct Call {
  Call() = default;
  explicit Call(pybind11::handle given) {
    if (given.is_none()) {
      return;
    }
    if (PyTuple_Check(given.ptr()) == 0 || PyTuple_GET_SIZE(given.ptr()) != 5) {
      throw pybind11::type_error("the arguments of a request are a CoreCall or None");
    }
    auto next = [given, index = Py_ssize_t{0}]() mutable {  // in the order of CoreCall
      return pybind11::handle(PyTuple_GET_ITEM(given.ptr(), index++));
    };
    run_options = pybind11::reinterpret_borrow<pybind11::object>(next());
    device = next().cast<std::string>();
    timeout = next().cast<std::optional<double>>();
    outputs_on_device = next().cast<bool>();
    const pybind11::handle spans = next();
    timeline = spans.is_none() ? nullptr : spans.cast<std::shared_ptr<Timeline>>();
  }

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
