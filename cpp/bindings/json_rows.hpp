#pragma once

#include <pybind11/numpy.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <tuple>

#include "core/serve/json_rows.hpp"

namespace ortmulti::bindings {

/// What is before a row's number, behind it, and behind the row.
using Around = std::tuple<std::string, std::string, std::string>;

/// Rows of numbers that Python has.
class NumberRows {
 public:
  explicit NumberRows(const pybind11::array& given);

  /// Of so many rows, from the first one on. The texts are kept by the caller. Needs no GIL.
  serve::JsonRows writer(std::size_t first, std::size_t count, std::string_view head, std::string_view tail,
                         const Around& around, bool base64) const;
  std::size_t count() const noexcept { return count_; }

 private:
  pybind11::array_t<float, pybind11::array::c_style | pybind11::array::forcecast> rows_;
  const float* data_ = nullptr;
  std::size_t count_ = 0;
  std::size_t columns_ = 0;
};

/// Whether JSON can have them.
bool is_finite(const serve::JsonRows& rows);

/// Written in the memory of the result, without the GIL. None: a number is not finite.
pybind11::object json_rows(const pybind11::array& given, const std::string& head, const std::string& tail,
                           const Around& around, bool base64);

}  // namespace ortmulti::bindings
