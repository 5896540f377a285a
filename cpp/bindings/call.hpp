#pragma once

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>

#include "bindings/signals.hpp"
#include "core/base/device.hpp"
#include "core/base/timeline.hpp"
#include "core/pool/request.hpp"

namespace ortmulti::bindings {

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
    if (const auto name = next().cast<std::string>(); !name.empty()) {
      device = parse_device(name);
    }
    timeout = next().cast<std::optional<double>>();
    outputs_on_device = next().cast<bool>();
    const pybind11::handle spans = next();
    timeline = spans.is_none() ? nullptr : spans.cast<std::shared_ptr<Timeline>>();
  }

  pybind11::object run_options = pybind11::none();
  std::optional<Device> device;
  std::optional<double> timeout;  ///< Seconds.
  bool outputs_on_device = false;
  std::shared_ptr<Timeline> timeline;

  void apply_to(Request& request) const {
    request.device = device;
    if (timeout) {
      request.deadline = after(*timeout);
    }
    request.outputs_on_device = outputs_on_device;
    request.timeline = timeline;
  }
};

}  // namespace ortmulti::bindings
