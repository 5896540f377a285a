#include "bindings/json_rows.hpp"

#include <cstddef>
#include <span>

#include "bindings/gil.hpp"
#include "core/serve/json_rows.hpp"

namespace ortmulti::bindings {

py::object json_rows(const py::array& given, const std::string& head, const std::string& tail, const Around& around,
                     bool base64) {
  const auto table = py::array_t<float, py::array::c_style | py::array::forcecast>::ensure(given);
  if (!table) {
    throw py::error_already_set();
  }
  if (table.ndim() != 2 || table.shape(1) == 0) {
    throw py::value_error("rows are an array of two dimensions, with a column or more");
  }
  const auto& [before, behind_number, behind] = around;
  const serve::JsonRows rows{.numbers = std::span(table.data(), static_cast<std::size_t>(table.size())),
                             .columns = static_cast<std::size_t>(table.shape(1)),
                             .form = base64 ? serve::JsonRows::Form::base64 : serve::JsonRows::Form::numbers,
                             .head = head,
                             .tail = tail,
                             .before = before,
                             .behind_number = behind_number,
                             .behind = behind};
  if (!without_gil([&] { return rows.is_finite(); })) {
    return py::none();
  }
  PyObject* bytes = PyBytes_FromStringAndSize(nullptr, static_cast<py::ssize_t>(rows.most_bytes()));
  if (bytes == nullptr) {
    throw py::error_already_set();
  }
  char* const begin = PyBytes_AS_STRING(bytes);
  const char* const end = without_gil([&] { return rows.write(begin); });
  if (_PyBytes_Resize(&bytes, end - begin) != 0) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::bytes>(bytes);
}

}  // namespace ortmulti::bindings
