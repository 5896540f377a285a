#include <new>
#include <string>
#include <string_view>

#include "bindings/errors.hpp"
#include "bindings/registrations.hpp"

namespace py = pybind11;

namespace ortmulti::bindings {
namespace {

const char* class_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::fail:
      return "Fail";
    case ErrorKind::invalid_argument:
      return "InvalidArgument";
    case ErrorKind::no_such_file:
      return "NoSuchFile";
    case ErrorKind::no_model:
      return "NoModel";
    case ErrorKind::engine_error:
      return "EngineError";
    case ErrorKind::runtime_exception:
      return "RuntimeException";
    case ErrorKind::invalid_protobuf:
      return "InvalidProtobuf";
    case ErrorKind::model_loaded:
      return "ModelLoaded";
    case ErrorKind::not_implemented:
      return "NotImplemented";
    case ErrorKind::invalid_graph:
      return "InvalidGraph";
    case ErrorKind::ep_fail:
      return "EPFail";
    case ErrorKind::model_load_canceled:
      return "ModelLoadCanceled";
    case ErrorKind::model_requires_compilation:
      return "ModelRequiresCompilation";
    case ErrorKind::not_found:
      return "NotFound";
    case ErrorKind::device_reset:
      return "DeviceReset";
    case ErrorKind::library:
      return "LibraryError";
    case ErrorKind::device:
      return "DeviceError";
    case ErrorKind::out_of_memory:
      return "OutOfMemory";
    case ErrorKind::closed:
      return "ClosedError";
    case ErrorKind::forked:
      return "ForkError";
    case ErrorKind::weights:
      return "WeightsError";
    case ErrorKind::invalid_type:
      return "InvalidType";
    case ErrorKind::queue_full:
      return "QueueFull";
    case ErrorKind::deadline:
      return "DeadlineExceeded";
    case ErrorKind::cancelled:
      return "Error";  // Python has its own exception for that, which futures raise
  }
  return "Error";
}

}  // namespace

py::object to_python(const Error& error) {
  // The classes are Python's, where they have their bases and documentation; only a failure looks them up.
  const py::object type = py::module_::import("ortmulti.errors").attr(class_name(error.kind()));
  // Texts quote models and paths, which need not be UTF-8.
  const std::string_view text = error.what();
  const auto message = py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
  if (!message) {
    throw py::error_already_set();
  }
  return type.attr("_of_runtime")(message);
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
  const py::object classes = py::module_::import("ortmulti.errors");
  const std::string text = py::str(exception);
  for (const py::handle base : py::type::of(exception).attr("__mro__")) {
    for (int number = 1; number <= static_cast<int>(ErrorKind::cancelled); ++number) {
      const auto kind = static_cast<ErrorKind>(number);
      const char* name = class_name(kind);
      if (std::string_view(name) != "Error" && base.is(classes.attr(name))) {
        return {kind, text};
      }
    }
    if (base.is(classes.attr("Error"))) {
      return {ErrorKind::fail, text};
    }
  }
  return {ErrorKind::fail, py::str(py::type::of(exception).attr("__name__")).cast<std::string>() + ": " + text};
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
            const py::object exception = to_python(error);
            PyErr_SetObject(py::type::of(exception).ptr(), exception.ptr());
          } catch (py::error_already_set& failure) {
            failure.restore();
          }
        }
      });
}

}  // namespace ortmulti::bindings
