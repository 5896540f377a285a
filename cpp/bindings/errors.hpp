#pragma once

#include <exception>

#include "bindings/gil.hpp"
#include "core/base/error.hpp"

namespace ortmulti::bindings {

/// The exception of ortmulti.errors for an error of the core. Needs the GIL.
pybind11::object to_python(const Error& error);

/// The exception of Python for any exception. One that is not the core's becomes what pybind11 would raise. Throws
/// nothing itself.
pybind11::object to_python(const std::exception_ptr& exception);

void set_error(const pybind11::object& exception) noexcept;

/// Reports the exception that is being handled, which nobody can get, as Python does for an object's finalizer.
void discard_as_unraisable(pybind11::handle object) noexcept;

/// The other way: an exception of Python's as one that needs no GIL, under the kind of its class in ortmulti.errors or
/// of the nearest base that has one; `fail` and the class's name before the text where it is another's.
Error from_python(pybind11::handle exception);

}  // namespace ortmulti::bindings

namespace pybind11::detail {

/// An argument of a bound function: an exception of Python's, by from_python().
template <>
struct type_caster<std::exception_ptr> {
  PYBIND11_TYPE_CASTER(std::exception_ptr, const_name("BaseException"));
  bool load(handle source, bool /*convert*/) {
    if (PyExceptionInstance_Check(source.ptr())) {
      value = std::make_exception_ptr(ortmulti::bindings::from_python(source));
    }
    return value != nullptr;
  }
};

}  // namespace pybind11::detail
