#pragma once

#include <pybind11/pybind11.h>

#include <exception>

#include "core/error.hpp"

namespace ortmulti::bindings {

/// The exception of ortmulti.errors for an error of the core. Needs the GIL.
pybind11::object to_python(const Error& error);

/// Of any exception: what is none of the core's is the exception that pybind11 would raise.
pybind11::object to_python(const std::exception_ptr& exception);

}  // namespace ortmulti::bindings
