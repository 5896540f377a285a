#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "bindings/gil.hpp"
#include "core/base/error.hpp"
#include "core/ort/value.hpp"

namespace ortmulti::bindings {

/// A Python object that may be given up from any thread, with or without the GIL; nothing where it is none.
inline std::shared_ptr<const void> keep(pybind11::object object) {
  if (!object) {
    return nullptr;
  }
  return std::shared_ptr<PyObject>(object.release().ptr(), [](PyObject* held) {
    if (Py_IsInitialized() != 0) {
      const AcquireGil gil;
      Py_DECREF(held);
    }
  });
}

/// A contiguous buffer's memory, to be given up as above. Throws what Python raises for others.
inline std::shared_ptr<const Py_buffer> keep_buffer(pybind11::handle object) {
  auto view = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), view.get(), PyBUF_SIMPLE) != 0) {
    throw pybind11::error_already_set();
  }
  return std::shared_ptr<const Py_buffer>(view.release(), [](Py_buffer* held) {
    if (Py_IsInitialized() != 0) {
      const AcquireGil gil;
      PyBuffer_Release(held);
    }
    delete held;  // NOLINT(cppcoreguidelines-owning-memory)
  });
}

/// The type of a number that a caller gave. Throws Error for one that is no type of values.
inline ONNXTensorElementDataType to_element_type(int number) {
  // This header's enumeration has no names for element types of newer releases.
  if (number < ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED || number > ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4) {
    throw Error(ErrorKind::not_implemented, "there are no values of element type " + std::to_string(number));
  }
  return static_cast<ONNXTensorElementDataType>(number);
}

/// What a caller feeds, where that is a value, ours or another package's; null for arrays and the like. Throws what the
/// reader (`set_value_reader`) throws for values that cannot be taken.
std::shared_ptr<const Value> value_in(pybind11::handle object);

}  // namespace ortmulti::bindings
