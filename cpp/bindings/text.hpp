#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace ortmulti::bindings {

/// Text of models and paths, which need not be UTF-8, as a str and back: with lone surrogates, as Python's paths are.
inline pybind11::str to_str(const std::string& text) {
  PyObject* decoded = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape");
  if (decoded == nullptr) {
    throw pybind11::error_already_set();
  }
  return pybind11::reinterpret_steal<pybind11::str>(decoded);
}

inline std::string from_str(const pybind11::str& text) {
  PyObject* encoded = PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogateescape");
  if (encoded == nullptr) {
    throw pybind11::error_already_set();
  }
  return pybind11::reinterpret_steal<pybind11::bytes>(encoded);
}

/// The name of an object's class, for messages.
inline std::string class_name(pybind11::handle object) {
  return pybind11::type::of(object).attr("__name__").cast<std::string>();
}

}  // namespace ortmulti::bindings
