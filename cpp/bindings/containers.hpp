#pragma once

#include <onnxruntime_cxx_api.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <vector>

#include "core/ort/value.hpp"

namespace ortmulti::bindings {

/// What the inputs of one run lie in, which an output may share.
struct InputMemory {
  std::vector<pybind11::object> arrays;
  std::vector<std::shared_ptr<const Value>> values;

  /// Whether an output, a tensor, lies in it: ONNX Runtime returns an input that is also an output as it is.
  bool has(const Ort::Value& output) const;
};

/// Makes ONNX Runtime's value of what a caller feeds: an array, a list of arrays, a dict or a list of dicts, or None
/// for an optional, which makes a null value: such an input is left out of the run. The arrays whose memory is used in
/// place are added to `memory`. Throws Error for what does not fit the declared type.
Ort::Value to_value(const ValueInfo& declared, pybind11::handle object, InputMemory& memory);

/// Makes what a run returns of an output: an array, a list, a dict with int or str as keys, or None. Arrays own their
/// memory: what lies in that of the inputs is copied.
pybind11::object to_python(Ort::Value value, const std::string& name, const InputMemory& memory);

}  // namespace ortmulti::bindings
