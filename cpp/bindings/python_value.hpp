#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <utility>

#include "bindings/gil.hpp"
#include "core/value.hpp"

namespace ortmulti::bindings {

/// A Python object that may be given up from any thread, with or without the GIL; nothing where it is none.
inline std::shared_ptr<const void> keep(pybind11::object object) {
  if (!object) {
    return nullptr;
  }
  return std::shared_ptr<PyObject>(object.release().ptr(), [](PyObject* held) {
    if (Py_IsInitialized() != 0) {
      const pybind11::gil_scoped_acquire gil;
      Py_DECREF(held);
    }
  });
}

/// A value as Python holds it. Freeing memory of a GPU may wait for it.
struct PythonValue {
  explicit PythonValue(std::shared_ptr<const Value> held) : value(std::move(held)) {}
  PythonValue(const PythonValue&) = delete;
  PythonValue& operator=(const PythonValue&) = delete;
  PythonValue(PythonValue&&) noexcept = default;
  PythonValue& operator=(PythonValue&&) = delete;
  ~PythonValue() {
    if (value) {
      const ReleaseGil nogil;
      value.reset();
    }
  }

  std::shared_ptr<const Value> value;
};

}  // namespace ortmulti::bindings
