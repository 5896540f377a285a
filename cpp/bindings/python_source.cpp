#include "bindings/python_source.hpp"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "bindings/errors.hpp"
#include "bindings/gil.hpp"
#include "bindings/python_value.hpp"
#include "bindings/registrations.hpp"
#include "bindings/text.hpp"
#include "core/base/error.hpp"

namespace ortmulti::bindings {
namespace {

std::string identity_of(py::handle object) {
  const py::object identity = object.attr("identity");
  if (!py::isinstance<py::str>(identity)) {
    throw Error(ErrorKind::invalid_type, "a source's identity is a str, not of " + class_name(identity));
  }
  return from_str(identity);
}

std::uint64_t to_count(py::handle number) {
  const std::uint64_t count = PyLong_AsUnsignedLongLong(number.ptr());
  if (PyErr_Occurred() != nullptr) {
    throw py::error_already_set();
  }
  return count;
}

Reading reading_of(py::handle object) {
  constexpr std::uint64_t max_at_once = 1024;
  constexpr std::uint64_t max_bytes = 1U << 30U;
  const auto number = [&](const char* name, std::uint64_t least, std::uint64_t most) -> std::uint64_t {
    const py::object given = py::getattr(object, name, py::none());
    if (given.is_none()) {
      return 0;
    }
    const std::uint64_t value = to_count(given);
    if (value < least || value > most) {
      throw Error(ErrorKind::invalid_argument, std::string(name) + " of a source is from " + std::to_string(least) +
                                                   " to " + std::to_string(most) + ", not " + std::to_string(value));
    }
    return value;
  };
  constexpr std::uint64_t min_bytes = 4096;
  return {static_cast<int>(number("reads_at_once", 1, max_at_once)), number("range_bytes", min_bytes, max_bytes)};
}

// Memory that Python may write during one call; it may then be freed.
class Lent : NonCopyable {
 public:
  Lent(void* target, std::uint64_t size)
      : memory_(static_cast<py::ssize_t>(size), static_cast<std::uint8_t*>(target), py::none()), view_(memory_) {}
  ~Lent() { static_cast<void>(take_back()); }

  const py::memoryview& view() const noexcept { return view_; }

  /// Makes the view useless. False where something else still refers to the memory, such as an array over the view.
  bool take_back() noexcept {
    Py_XDECREF(PyObject_CallMethod(view_.ptr(), "release", nullptr));
    PyErr_Clear();
    return memory_.ref_count() == 1;
  }

 private:
  py::array_t<std::uint8_t> memory_;
  py::memoryview view_;
};

class PythonSource : public Source {
 public:
  PythonSource(const std::string& name, const std::string& identity, std::uint64_t size, Reading reading,
               py::object object)
      : Source(name, identity, size), reading_(reading), python_(object.ptr()), owner_(keep(std::move(object))) {}

  Reading reading() const noexcept override { return reading_; }

  void interrupt() const noexcept override {
    try {
      if (Py_IsInitialized() != 0) {
        const AcquireGil gil;
        const py::error_scope kept;
        if (py::hasattr(python_, "interrupt")) {
          python_.attr("interrupt")();
        }
      }
    } catch (...) {  // NOLINT(bugprone-empty-catch): the reads end by themselves
    }
  }

 private:
  void read_range(void* target, std::uint64_t size, std::uint64_t offset) const override {
    if (Py_IsInitialized() == 0) {
      throw Error(ErrorKind::closed, "'" + name() + "' cannot be read any more: Python has ended");
    }
    if (const auto bytes = call(target, size, offset)) {
      std::memcpy(target, bytes->buf, size);
    }
  }

  // The bytes that read_into has returned; null where it wrote them.
  std::shared_ptr<const Py_buffer> call(void* target, std::uint64_t size, std::uint64_t offset) const {
    const bool of_python = PyGILState_GetThisThreadState() != nullptr;
    const AcquireGil gil;
    Lent buffer(target, size);
    std::shared_ptr<const Py_buffer> bytes;
    std::optional<Error> failure;
    try {
      const py::object result = python_.attr("read_into")(buffer.view(), offset);
      if (PyLong_Check(result.ptr()) == 0) {
        bytes = keep_buffer(result);
      }
      const std::uint64_t count = bytes ? static_cast<std::uint64_t>(bytes->len) : to_count(result);
      if (count != size) {
        failure.emplace(ErrorKind::weights, std::to_string(count) + " bytes came instead of " + std::to_string(size));
      } else if (identity_of(python_) != identity()) {
        failure.emplace(ErrorKind::weights, "it was changed while it was loaded; load again");
      }
    } catch (const Error& error) {
      failure.emplace(error);
    } catch (const py::error_already_set& error) {
      if (of_python && !error.matches(PyExc_Exception)) {  // such as KeyboardInterrupt
        throw;
      }
      failure.emplace(from_python(error.value()));
    }
    // Not before: the traceback of an exception may have referred to it.
    if (!buffer.take_back() && !failure) {
      failure.emplace(ErrorKind::weights, "read_into keeps its buffer, which is valid during the call only");
    }
    if (failure) {
      throw Error(failure->kind(),
                  "reading '" + name() + "' at byte " + std::to_string(offset) + " failed: " + failure->what());
    }
    return bytes;
  }

  Reading reading_;
  py::handle python_;
  std::shared_ptr<const void> owner_;
};

py::array read(const Source& source, std::uint64_t offset, std::uint64_t size) {
  py::array_t<std::uint8_t> bytes(static_cast<py::ssize_t>(size));
  std::uint8_t* const target = bytes.mutable_data();
  {
    const ReleaseGil nogil;
    source.read(target, size, offset);
  }
  return bytes;
}

std::shared_ptr<const Source> over_buffer(const Text& given, const py::object& buffer,
                                          std::optional<std::uint64_t> size, const Text& identity = Text("")) {
  const std::string& name = given;
  const auto bytes = keep_buffer(buffer);
  const auto all = static_cast<std::uint64_t>(bytes->len);
  const std::uint64_t used = size.value_or(all);
  if (used > all) {
    throw Error(ErrorKind::invalid_argument, "the buffer of '" + name + "' has " + std::to_string(all) +
                                                 " bytes, fewer than the length " + std::to_string(used));
  }
  return memory_source(name, {bytes, static_cast<const unsigned char*>(bytes->buf)}, used, identity);
}

}  // namespace

std::shared_ptr<const Source> to_source(py::handle object) {
  if (py::isinstance<Source>(object)) {
    return object.cast<std::shared_ptr<Source>>();
  }
  if (!py::hasattr(object, "read_into")) {
    throw Error(ErrorKind::invalid_type, "a source has identity, size and read_into, unlike " + class_name(object));
  }
  const std::string identity = identity_of(object);
  const py::object name = py::getattr(object, "name", py::none());
  return std::make_shared<const PythonSource>(py::isinstance<py::str>(name) ? from_str(name) : identity, identity,
                                              to_count(object.attr("size")), reading_of(object),
                                              py::reinterpret_borrow<py::object>(object));
}

std::shared_ptr<const Source> to_model_source(py::handle object) {
  if (PyUnicode_Check(object.ptr()) != 0) {
    const std::string path = from_path(py::reinterpret_borrow<py::str>(object));
    return without_gil([&] { return file_source(path); });
  }
  if (PyBytes_Check(object.ptr()) != 0 || PyByteArray_Check(object.ptr()) != 0 ||
      PyMemoryView_Check(object.ptr()) != 0) {
    return over_buffer(Text("bytes"), py::reinterpret_borrow<py::object>(object), std::nullopt);
  }
  return to_source(object);
}

void register_source(py::module_& module) {
  py::class_<Source, std::shared_ptr<Source>>(module, "Source")
      .def_property_readonly("name", [](const Source& source) { return to_str(source.name()); })
      .def_property_readonly("identity", [](const Source& source) { return to_str(source.identity()); })
      .def_property_readonly("size", &Source::size)
      .def("read", &read, py::arg("offset"), py::arg("size"))
      .def(
          "identified",
          [](const Source& source, const Text& name, const Text& identity) {
            return memory_source(name, source.map(), source.size(), identity);
          },
          py::arg("name"), py::arg("identity"))
      .def("is_current", &Source::unchanged, Nogil())
      .def("check", &Source::check, Nogil())
      .def("__eq__",
           [](const Source& source, const py::object& other) {
             return py::isinstance<Source>(other) && other.cast<const Source&>().identity() == source.identity();
           })
      .def("__hash__", [](const Source& source) { return py::hash(to_str(source.identity())); })
      .def("__repr__", [](const Source& source) { return to_str("<Source " + source.identity() + ">"); });
  module.def("file_source", [](const Path& path) { return file_source(path); }, py::arg("path"), Nogil());
  module.def("memory_source", &over_buffer, py::arg("name"), py::arg("buffer"), py::arg("size") = py::none(),
             py::arg("identity") = "");
}

}  // namespace ortmulti::bindings
