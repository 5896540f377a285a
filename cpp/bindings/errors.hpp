#pragma once

#include <pybind11/pybind11.h>

#include <exception>

#include "core/base/error.hpp"

namespace ortmulti::bindings {

/// The exception of ortmulti.errors for an error of the core. Needs the GIL.
pybind11::object to_python(const Error& error);

/// Of any exception: what is none of the core's is the exception that pybind11 would raise. Raises none itself.
pybind11::object to_python(const std::exception_ptr& exception);

/// The other way: an exception of Python's as one that needs no GIL, under the kind of its class in ortmulti.errors or
/// of the nearest base that has one; `fail` and the class's name before the text where it is another's.
Error from_python(pybind11::handle exception);

}  // namespace ortmulti::bindings
