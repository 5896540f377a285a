#include "bindings/json_rows.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "bindings/gil.hpp"

namespace ortmulti::bindings {

NumberRows::NumberRows(const py::array& given) : rows_(decltype(rows_)::ensure(given)) {
  if (!rows_) {
    throw py::error_already_set();
  }
  if (rows_.ndim() != 2 || rows_.shape(1) == 0) {
    throw py::value_error("rows are an array of two dimensions, with a column or more");
  }
  data_ = rows_.data();
  count_ = static_cast<std::size_t>(rows_.shape(0));
  columns_ = static_cast<std::size_t>(rows_.shape(1));
}

serve::JsonRows NumberRows::writer(std::size_t first, std::size_t count, std::string_view head, std::string_view tail,
                                   const Around& around, bool base64) const {
  const auto& [before, behind_number, behind] = around;
  return {.numbers = std::span(data_ + first * columns_, count * columns_),
          .columns = columns_,
          .form = base64 ? serve::JsonRows::Form::base64 : serve::JsonRows::Form::numbers,
          .head = head,
          .tail = tail,
          .before = before,
          .behind_number = behind_number,
          .behind = behind};
}

bool is_finite(const serve::JsonRows& rows) {
  return std::ranges::all_of(rows.numbers, [](float number) { return std::isfinite(number); });
}

py::object json_rows(const py::array& given, const std::string& head, const std::string& tail, const Around& around,
                     bool base64) {
  const NumberRows rows(given);
  const serve::JsonRows writer = rows.writer(0, rows.count(), head, tail, around, base64);
  if (!without_gil([&] { return is_finite(writer); })) {
    return py::none();
  }
  PyObject* bytes = PyBytes_FromStringAndSize(nullptr, static_cast<py::ssize_t>(writer.most_bytes()));
  if (bytes == nullptr) {
    throw py::error_already_set();
  }
  char* const begin = PyBytes_AS_STRING(bytes);
  const char* const end = without_gil([&] { return writer.write(begin); });
  if (_PyBytes_Resize(&bytes, end - begin) != 0) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::bytes>(bytes);
}

}  // namespace ortmulti::bindings
