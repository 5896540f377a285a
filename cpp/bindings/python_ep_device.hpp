#pragma once

#include <memory>

#include "core/ort/plugins.hpp"

namespace ortmulti::bindings {

/// What OrtEpDevice is in Python: pybind11 has no holder of constant objects.
struct PythonEpDevice {
  std::shared_ptr<const EpDevice> device;
};

}  // namespace ortmulti::bindings
