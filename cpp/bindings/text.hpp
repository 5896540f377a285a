#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "bindings/gil.hpp"
#include "core/base/device.hpp"
#include "core/base/error.hpp"
#include "core/policy/sleep_level.hpp"

namespace ortmulti::bindings {

/// The new reference that a function of Python's C API returned. Throws what it raised where that is null.
template <typename Object = pybind11::object>
Object owned(PyObject* result) {
  if (result == nullptr) {
    throw pybind11::error_already_set();
  }
  return pybind11::reinterpret_steal<Object>(result);
}

/// UTF-8 as a str; `errors`: as for bytes.decode().
inline pybind11::str decode(std::string_view text, const char* errors) {
  return owned<pybind11::str>(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), errors));
}

/// The UTF-8 that a str keeps as long as it lives.
inline std::string_view utf8_of(pybind11::handle text) {
  Py_ssize_t size = 0;
  const char* const data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) {
    throw pybind11::error_already_set();
  }
  return {data, static_cast<std::size_t>(size)};
}

/// Text of models and paths, which need not be UTF-8, as a str and back: with lone surrogates, as Python's paths are.
inline pybind11::str to_str(std::string_view text) { return decode(text, "surrogateescape"); }

inline std::string from_str(const pybind11::str& text) {
  return owned<pybind11::bytes>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogateescape"));
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

/// Arguments and results of bound functions, converted by to_str() and from_str(), or from_path().
struct Text {
  Text() = default;
  Text(std::string given) : text(std::move(given)) {}            // NOLINT(google-explicit-constructor)
  operator const std::string&() const noexcept { return text; }  // NOLINT(google-explicit-constructor)

  std::string text;
};
struct Path : Text {};

}  // namespace ortmulti::bindings

namespace pybind11::detail {

template <typename Value, std::string (*Parse)(const str&)>
struct TextCaster {
  PYBIND11_TYPE_CASTER(Value, const_name("str"));
  bool load(handle source, bool /*convert*/) {
    if (PyUnicode_Check(source.ptr()) == 0) {
      return false;
    }
    value.text = Parse(reinterpret_borrow<str>(source));
    return true;
  }
  static handle cast(const Value& given, return_value_policy /*policy*/, handle /*parent*/) {
    return ortmulti::bindings::to_str(given.text).release();
  }
};

template <>
struct type_caster<ortmulti::bindings::Text> : TextCaster<ortmulti::bindings::Text, ortmulti::bindings::from_str> {};
template <>
struct type_caster<ortmulti::bindings::Path> : TextCaster<ortmulti::bindings::Path, ortmulti::bindings::from_path> {};

/// A value of the core that Python knows by its name.
template <typename Value, typename Argument, Value (*Parse)(Argument)>
struct NameCaster {
  PYBIND11_TYPE_CASTER(Value, const_name("str"));
  bool load(handle source, bool convert) {
    make_caster<std::string> text;
    if (!text.load(source, convert)) {
      return false;
    }
    value = Parse(cast_op<std::string&>(text));
    return true;
  }
  static handle cast(const Value& given, return_value_policy /*policy*/, handle /*parent*/) {
    return str(to_string(given)).release();
  }
};

template <>
struct type_caster<ortmulti::Device> : NameCaster<ortmulti::Device, std::string_view, ortmulti::parse_device> {};
template <>
struct type_caster<ortmulti::SleepLevel>
    : NameCaster<ortmulti::SleepLevel, const std::string&, ortmulti::parse_sleep_level> {};

}  // namespace pybind11::detail
