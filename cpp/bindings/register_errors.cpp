#include <algorithm>
#include <array>
#include <new>
#include <string>
#include <utility>

#include "bindings/errors.hpp"
#include "bindings/registrations.hpp"
#include "bindings/text.hpp"

namespace ortmulti::bindings {
namespace {

// The classes of ortmulti.errors. A cancelled request is an Error: Python has its own exception, which futures raise.
constexpr std::array<std::pair<ErrorKind, const char*>, 24> classes = {
    {{ErrorKind::fail, "Fail"},
     {ErrorKind::invalid_argument, "InvalidArgument"},
     {ErrorKind::no_such_file, "NoSuchFile"},
     {ErrorKind::no_model, "NoModel"},
     {ErrorKind::engine_error, "EngineError"},
     {ErrorKind::runtime_exception, "RuntimeException"},
     {ErrorKind::invalid_protobuf, "InvalidProtobuf"},
     {ErrorKind::model_loaded, "ModelLoaded"},
     {ErrorKind::not_implemented, "NotImplemented"},
     {ErrorKind::invalid_graph, "InvalidGraph"},
     {ErrorKind::ep_fail, "EPFail"},
     {ErrorKind::model_load_canceled, "ModelLoadCanceled"},
     {ErrorKind::model_requires_compilation, "ModelRequiresCompilation"},
     {ErrorKind::not_found, "NotFound"},
     {ErrorKind::device_reset, "DeviceReset"},
     {ErrorKind::library, "LibraryError"},
     {ErrorKind::device, "DeviceError"},
     {ErrorKind::out_of_memory, "OutOfMemory"},
     {ErrorKind::closed, "ClosedError"},
     {ErrorKind::forked, "ForkError"},
     {ErrorKind::weights, "WeightsError"},
     {ErrorKind::invalid_type, "InvalidType"},
     {ErrorKind::queue_full, "QueueFull"},
     {ErrorKind::deadline, "DeadlineExceeded"}}};

}  // namespace

py::object to_python(const Error& error) {
  // The classes are Python's, where they have their bases and documentation; only a failure looks them up.
  const auto* const found = std::ranges::find_if(classes, [&](const auto& each) { return each.first == error.kind(); });
  const py::object type = py::module_::import("ortmulti.errors").attr(found == classes.end() ? "Error" : found->second);
  // Texts quote models and paths, which need not be UTF-8.
  return type.attr("_of_runtime")(decode(error.what(), "backslashreplace"));
}

py::object to_python(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    try {
      return to_python(error);
    } catch (py::error_already_set& failure) {  // such as Ctrl-C, which the caller gets instead
      return failure.value();
    }
  } catch (py::error_already_set& error) {
    return error.value();
  } catch (const std::bad_alloc&) {
    return py::reinterpret_borrow<py::object>(PyExc_MemoryError)("the host has not enough free memory");
  } catch (const std::exception& error) {
    return py::reinterpret_borrow<py::object>(PyExc_RuntimeError)(error.what());
  }
}

Error from_python(py::handle exception) {
  const py::object module = py::module_::import("ortmulti.errors");
  const std::string text = py::str(exception);
  for (const py::handle base : py::type::of(exception).attr("__mro__")) {
    for (const auto& [kind, name] : classes) {
      if (base.is(module.attr(name))) {
        return {kind, text};
      }
    }
    if (base.is(module.attr("Error"))) {
      return {ErrorKind::fail, text};
    }
  }
  return {ErrorKind::fail, class_name(exception) + ": " + text};
}

void set_error(const py::object& exception) noexcept {
  PyErr_SetObject(py::type::of(exception).ptr(), exception.ptr());
}

void discard_as_unraisable(py::handle object) noexcept {
  try {
    throw;
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable(py::reinterpret_borrow<py::object>(object));
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    PyErr_WriteUnraisable(object.ptr());
  }
}

void register_errors(py::module_& /*module*/) {
  py::register_local_exception_translator(
      [](std::exception_ptr pointer) {  // NOLINT(performance-unnecessary-value-param): pybind11's signature
        try {
          if (pointer) {
            std::rethrow_exception(pointer);
          }
        } catch (const Error& error) {
          try {
            set_error(to_python(error));
          } catch (py::error_already_set& failure) {
            failure.restore();
          }
        }
      });
}

}  // namespace ortmulti::bindings
