#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "core/base/error.hpp"

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

/// A path as the file system takes it. Throws Error with no_such_file for a path that no file can have.
inline std::string from_path(const pybind11::str& path) {
  const char* problem = "a NUL character";
  try {
    std::string text = from_str(path);
    if (text.find('\0') == std::string::npos) {
      return text;
    }
  } catch (const pybind11::error_already_set& error) {
    if (!error.matches(PyExc_UnicodeEncodeError)) {
      throw;
    }
    problem = "a character that cannot be encoded";
  }
  throw Error(ErrorKind::no_such_file,
              "no file can have the path " + pybind11::repr(path).cast<std::string>() + ": it has " + problem);
}

/// The name of an object's class, for messages.
inline std::string class_name(pybind11::handle object) {
  return pybind11::type::of(object).attr("__name__").cast<std::string>();
}

}  // namespace ortmulti::bindings
