#pragma once

#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "bindings/signals.hpp"
#include "core/base/device.hpp"
#include "core/base/timeline.hpp"
#include "core/pool/request.hpp"

namespace ortmulti::bindings {

/// How a pool's request is to run: ortmulti.pool.call.CoreCall, or None.
struct Call {
  Call() = default;
  explicit Call(pybind11::handle given) {
    using Trace = std::pair<std::shared_ptr<Timeline>, std::string>;
    using Fields = std::tuple<pybind11::object, std::string, std::optional<double>, bool, std::optional<Trace>, int,
                              std::uint64_t>;
    if (!given.is_none()) {
      std::string name;
      std::optional<Trace> traced;
      std::tie(run_options, name, timeout, outputs_on_device, traced, priority, caller) = given.cast<Fields>();
      if (traced) {
        trace = {std::move(traced->first), std::move(traced->second)};
      }
      if (!name.empty()) {
        device = parse_device(name);
      }
    }
  }

  pybind11::object run_options = pybind11::none();
  std::optional<Device> device;
  std::optional<double> timeout;  ///< Seconds.
  bool outputs_on_device = false;
  RequestTrace trace;
  int priority = 0;
  std::uint64_t caller = 0;

  void apply_to(Request& request) const {
    request.device = device;
    if (timeout) {
      request.deadline = after(*timeout);
    }
    request.outputs_on_device = outputs_on_device;
    request.trace = trace;
    request.priority = priority;
    request.caller = caller;
  }
};

}  // namespace ortmulti::bindings

namespace pybind11::detail {

template <>
struct type_caster<ortmulti::bindings::Call> {
  PYBIND11_TYPE_CASTER(ortmulti::bindings::Call, const_name("CoreCall | None"));
  bool load(handle source, bool /*convert*/) {
    value = ortmulti::bindings::Call(source);
    return true;
  }
};

}  // namespace pybind11::detail
