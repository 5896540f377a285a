#pragma once

#include <onnxruntime_cxx_api.h>
#include <pybind11/numpy.h>

#include <string>
#include <utility>
#include <vector>

#include "core/ort/value.hpp"

namespace ortmulti::bindings {

/// One run's input: a tensor in memory from which values can be made, or ONNX Runtime's value; and the array that has
/// the memory.
struct Input {
  HostTensor tensor;
  Ort::Value value{nullptr};
  pybind11::object array;

  bool is_value() const noexcept { return value != nullptr; }
  Ort::Value take_value() { return is_value() ? std::move(value) : value_over(tensor); }
};

/// Makes an input of the declared element type of a NumPy array or of what NumPy can make one from. A contiguous
/// array's memory is used in place; others, strings, and what ONNX Runtime packs are copied. Throws Error for another
/// dtype.
Input to_input(const ValueInfo& declared, pybind11::handle object);

/// Makes a NumPy array over a tensor's memory, which it owns from then on; or with a copy of it, as always of strings
/// and of what ONNX Runtime packs.
pybind11::object to_array(Ort::Value value, const std::string& name, bool copy);

/// A NumPy array with a copy of `count` rows of a tensor of this shape, which lie one behind another. Throws Error for
/// a type of which there are no arrays.
pybind11::object copied_rows(ONNXTensorElementDataType type, const std::vector<std::int64_t>& shape, std::size_t count,
                             const void* data, std::size_t bytes, const std::string& name);

/// ONNX Runtime's element type of a dtype. Throws Error with ErrorKind::invalid_type for one that it does not have.
ONNXTensorElementDataType element_type_of(const pybind11::dtype& dtype);

/// For messages: "input 'x' is tensor(float)".
inline std::string described(const ValueInfo& declared) { return "input '" + declared.name + "' is " + declared.type; }
inline std::string name_of(const pybind11::dtype& dtype) {
  return pybind11::str(pybind11::object(dtype)).cast<std::string>();
}

/// The dtype of a tensor's elements. Throws Error with ErrorKind::not_implemented where NumPy has none.
pybind11::dtype dtype_of(ONNXTensorElementDataType type);
/// The dtype of arrays of this type. Some types need the package ml_dtypes: if it is missing, this throws Error with
/// ErrorKind::not_implemented.
pybind11::dtype array_dtype_of(ONNXTensorElementDataType type);

/// A NumPy array over a tensor in the CPU's memory, which `owner` keeps alive; of strings, a copy.
pybind11::object array_over(const Ort::Value& tensor, pybind11::handle owner);

}  // namespace ortmulti::bindings
