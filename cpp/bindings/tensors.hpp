#pragma once

#include <onnxruntime_cxx_api.h>
#include <pybind11/numpy.h>

#include <vector>

#include "core/session.hpp"

namespace ortmulti::bindings {

/// One run's input: ONNX Runtime's value, and the array whose memory it uses.
struct Input {
  Ort::Value value{nullptr};
  pybind11::object array;
};

/// Makes ONNX Runtime's value, of the declared element type, of a NumPy array or of what NumPy can make one from. A
/// contiguous array's memory is used in place; others, strings, and what ONNX Runtime packs are copied. Throws Error
/// for another dtype.
Input to_input(const ValueInfo& declared, pybind11::handle object);

/// Whether a run's output is an input's memory: ONNX Runtime returns an input that is also an output as it is.
bool lies_in(const Ort::Value& value, pybind11::handle array);

/// Makes a NumPy array over a tensor's memory, which it owns from then on; or with a copy of it, as always of strings
/// and of what ONNX Runtime packs.
pybind11::object to_array(Ort::Value value, const std::string& name, bool copy);

}  // namespace ortmulti::bindings
