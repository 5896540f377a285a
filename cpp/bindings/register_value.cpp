#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bindings/dlpack.hpp"
#include "bindings/gil.hpp"
#include "bindings/python_value.hpp"
#include "bindings/registrations.hpp"
#include "bindings/tensors.hpp"
#include "core/base/error.hpp"
#include "core/cuda/memory.hpp"
#include "core/onnx/element_types.hpp"

namespace py = pybind11;

namespace ortmulti::bindings {
namespace {

using Shape = std::vector<std::int64_t>;

PythonValue allocate(const Shape& shape, int type, const std::string& device) {
  const Device on = parse_device(device);
  const ReleaseGil nogil;
  return PythonValue(Value::allocate(to_element_type(type), shape, on));
}

PythonValue to_device(const Value& value, const Device& device) {
  const ReleaseGil nogil;
  auto copy = Value::allocate(value.element_type(), value.shape(), device);
  copy->copy_from(value);
  return PythonValue(std::move(copy));
}

PythonValue from_array(const py::array& array, const std::string& device) {
  const Device on = parse_device(device);
  ValueInfo like;
  like.name = "numpy_obj";
  like.is_tensor = true;
  like.element_type = element_type_of(array.dtype());
  like.type = std::string("tensor(") + element_type_name(like.element_type) + ")";
  Input input = to_input(like, array);
  const bool writable = !input.array || py::reinterpret_borrow<py::array>(input.array).writeable();
  const auto value = std::make_shared<const Value>(input.take_value(), keep(std::move(input.array)), writable);
  return on.is_cuda() ? to_device(*value, on) : PythonValue(value);
}

// Over an array's memory, whose elements are taken for ones of this type and size.
PythonValue from_array_as(const py::array& given, int type) {
  py::array array = given;
  const bool ready =
      (array.flags() & py::array::c_style) != 0 && (array.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_) != 0;
  if (!ready) {
    array = py::module_::import("numpy").attr("require")(array, py::none(), "CA");
  }
  const std::size_t size = tensor_bytes(to_element_type(type), {1});
  if (size != static_cast<std::size_t>(array.itemsize()) || array.dtype().attr("hasobject").cast<bool>()) {
    throw Error(ErrorKind::invalid_argument, std::string("an element of tensor(") +
                                                 element_type_name(to_element_type(type)) + ") has " +
                                                 std::to_string(size) + " bytes; those of dtype " +
                                                 py::str(py::object(array.dtype())).cast<std::string>() + " have " +
                                                 std::to_string(array.itemsize()));
  }
  const Shape shape(array.shape(), array.shape() + array.ndim());
  const bool writable = array.writeable();
  // What is not writable is not written to; see `writable`.
  void* const data = const_cast<void*>(array.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  return PythonValue(Value::over(data, to_element_type(type), shape, Device::cpu(), keep(std::move(array)), writable));
}

// Over memory of which the caller knows an address alone, as in onnxruntime's interface. Its size is not checked.
PythonValue over(std::uintptr_t address, const Shape& shape, int type, const std::string& device,
                 const py::object& owner) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): what onnxruntime's interface takes
  auto* const memory = reinterpret_cast<void*>(address);
  return PythonValue(Value::over(memory, to_element_type(type), shape, parse_device(device),
                                 keep(owner.is_none() ? py::object() : owner)));
}

py::object to_numpy(const py::object& self) {
  const Value& value = *self.cast<const PythonValue&>().value;
  if (!value.device().is_cuda()) {
    py::object array = array_over(value.get(), self);
    if (!value.writable()) {
      array.attr("setflags")(py::arg("write") = false);
    }
    return array;
  }
  const Shape shape = value.shape();
  py::array array(dtype_of(value.element_type()), std::vector<py::ssize_t>(shape.begin(), shape.end()));
  void* const target = array.mutable_data();
  {
    const ReleaseGil nogil;
    value.copy_to_host(target);
  }
  return array;
}

void update(const PythonValue& self, const py::array& given) {
  const Value& value = *self.value;
  if (value.element_type() == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
    throw Error(ErrorKind::not_implemented, "strings cannot be updated in place");
  }
  // Of the newer types NumPy has arrays of their bits alone.
  const ElementType* type = find_element_type(value.element_type());
  const bool in_numpy = type != nullptr && type->numpy >= 0;
  const PythonValue source = in_numpy ? from_array(given, "cpu") : from_array_as(given, value.element_type());
  if (source.value->element_type() != value.element_type()) {
    throw Error(ErrorKind::invalid_type, "this OrtValue is " + value.type() + "; got an array of dtype " +
                                             py::str(py::object(given.dtype())).cast<std::string>());
  }
  const ReleaseGil nogil;
  value.copy_from(*source.value);
}

py::object to_dlpack(const PythonValue& self, bool bool_is_uint8) {
  const Value& value = *self.value;
  const auto type = dlpack::type_of(value.element_type(), bool_is_uint8);
  if (!type) {
    throw Error(ErrorKind::not_implemented, "DLPack has no " + value.type() + " as onnxruntime gives it");
  }
  if (!value.writable()) {
    PyErr_SetString(PyExc_BufferError, "this OrtValue is over a read-only array, which DLPack cannot say");
    throw py::error_already_set();
  }
  return dlpack::make_capsule(value.data(), value.device(), *type, value.shape(), self.value);
}

PythonValue from_dlpack(py::handle capsule, bool is_bool, py::object source) {
  auto value = dlpack::take(capsule, is_bool, std::move(source));
  if (const Device device = value->device(); device.is_cuda()) {
    // Who gave it made the default stream wait for its work; ONNX Runtime's streams do not wait for that one.
    const ReleaseGil nogil;
    wait_for_default_stream(CudaStartup::instance(), device.index);
  }
  return PythonValue(std::move(value));
}

// Python's function that knows the classes of values; set when the package is imported, and kept to the process's end.
PyObject* value_reader = nullptr;

}  // namespace

std::shared_ptr<const Value> value_in(py::handle object) {
  if (value_reader == nullptr || object.is_none() || py::isinstance<py::array>(object) ||
      PyList_Check(object.ptr()) != 0 || PyTuple_Check(object.ptr()) != 0 || PyDict_Check(object.ptr()) != 0) {
    return nullptr;
  }
  const py::object found = py::handle(value_reader)(object);
  return found.is_none() ? nullptr : found.cast<const PythonValue&>().value;
}

void register_value(py::module_& module) {
  module.def("element_type_of", [](const py::dtype& dtype) { return static_cast<int>(element_type_of(dtype)); });

  module.def("set_value_reader", [](py::object reader) { value_reader = reader.release().ptr(); }, py::arg("reader"));

  py::class_<PythonValue>(module, "OrtValue")
      .def_static("allocate", &allocate, py::arg("shape"), py::arg("element_type"), py::arg("device"))
      .def_static("from_array", &from_array, py::arg("array"), py::arg("device"))
      .def_static("from_array_as", &from_array_as, py::arg("array"), py::arg("element_type"))
      .def_static("over", &over, py::arg("address"), py::arg("shape"), py::arg("element_type"), py::arg("device"),
                  py::arg("owner") = py::none())
      .def_static("from_dlpack", &from_dlpack, py::arg("capsule"), py::arg("is_bool"), py::arg("source"))
      .def("has_value", [](const PythonValue& self) { return self.value->has_value(); })
      .def("is_writable", [](const PythonValue& self) { return self.value->writable(); })
      .def("is_tensor", [](const PythonValue& self) { return self.value->is_tensor(); })
      .def("is_sparse_tensor", [](const PythonValue& self) { return self.value->is_sparse_tensor(); })
      .def("is_tensor_sequence", [](const PythonValue& self) { return self.value->is_sequence_of_tensors(); })
      .def("data_type", [](const PythonValue& self) { return self.value->type(); })
      .def("element_type", [](const PythonValue& self) { return static_cast<int>(self.value->element_type()); })
      .def("shape", [](const PythonValue& self) { return self.value->shape(); })
      .def("size_in_bytes", [](const PythonValue& self) { return self.value->bytes(); })
      .def("device", [](const PythonValue& self) { return to_string(self.value->device()); })
      .def("data_ptr", [](const PythonValue& self) { return reinterpret_cast<std::uintptr_t>(self.value->data()); })
      .def("numpy", &to_numpy)
      .def("update", &update, py::arg("array"))
      .def(
          "copy_from", [](const PythonValue& self, const PythonValue& source) { self.value->copy_from(*source.value); },
          py::arg("source"), py::call_guard<ReleaseGil>())
      .def("dlpack", &to_dlpack, py::arg("bool_is_uint8"))
      .def("dlpack_device", [](const PythonValue& self) { return dlpack::device_of(self.value->device()); });
}

}  // namespace ortmulti::bindings
