#pragma once

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "bindings/signals.hpp"
#include "core/base/device.hpp"
#include "core/base/timeline.hpp"
#include "core/pool/request.hpp"

namespace ortmulti::bindings {

/// How a pool's request is to run: ortmulti.pool.call.CoreCall, or None.
struct Call {
  Call() = default;
  explicit Call(pybind11::handle given) {
    using Fields =
        std::tuple<pybind11::object, std::string, std::optional<double>, bool, std::shared_ptr<Timeline>, int>;
    if (!given.is_none()) {
      std::string name;
      std::tie(run_options, name, timeout, outputs_on_device, timeline, priority) = given.cast<Fields>();
      if (!name.empty()) {
        device = parse_device(name);
      }
    }
  }

  pybind11::object run_options = pybind11::none();
  std::optional<Device> device;
  std::optional<double> timeout;  ///< Seconds.
  bool outputs_on_device = false;
  std::shared_ptr<Timeline> timeline;
  int priority = 0;

  void apply_to(Request& request) const {
    request.device = device;
    if (timeout) {
      request.deadline = after(*timeout);
    }
    request.outputs_on_device = outputs_on_device;
    request.timeline = timeline;
    request.priority = priority;
  }
};

}  // namespace ortmulti::bindings
