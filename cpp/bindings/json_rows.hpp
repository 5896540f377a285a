#pragma once

#include <pybind11/numpy.h>

#include <string>
#include <tuple>

namespace ortmulti::bindings {

/// What is before a row's number, behind it, and behind the row.
using Around = std::tuple<std::string, std::string, std::string>;

/// Rows of numbers, written in the memory of the result, without the GIL. None: a number is not finite.
pybind11::object json_rows(const pybind11::array& given, const std::string& head, const std::string& tail,
                           const Around& around, bool base64);

}  // namespace ortmulti::bindings
