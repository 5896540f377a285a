#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bindings/dlpack.hpp"
#include "bindings/gil.hpp"
#include "bindings/python_value.hpp"
#include "bindings/registrations.hpp"
#include "bindings/tensors.hpp"
#include "bindings/text.hpp"
#include "core/base/error.hpp"
#include "core/cuda/memory.hpp"
#include "core/onnx/element_types.hpp"

namespace ortmulti::bindings {
namespace {

using Shape = std::vector<std::int64_t>;

// Values go to Python by freed_without_gil(): freeing memory of a GPU may wait for it.
using ValuePointer = std::shared_ptr<const Value>;

ValuePointer from_array(const py::array& array, const Device& device) {
  ValueInfo like;
  like.name = "numpy_obj";
  like.is_tensor = true;
  like.element_type = element_type_of(array.dtype());
  like.type = std::string("tensor(") + element_type_name(like.element_type) + ")";
  Input input = to_input(like, array);
  const bool writable = !input.array || py::reinterpret_borrow<py::array>(input.array).writeable();
  const auto value = std::make_shared<const Value>(input.take_value(), keep(std::move(input.array)), writable);
  if (!device.is_cuda()) {
    return freed_without_gil(value);
  }
  const ReleaseGil nogil;
  return freed_without_gil<const Value>(value->copied_to(device));
}

// Over an array's memory, whose elements are taken for ones of this type and size.
ValuePointer from_array_as(const py::array& given, int type) {
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
                                                 name_of(array.dtype()) + " have " + std::to_string(array.itemsize()));
  }
  const Shape shape(array.shape(), array.shape() + array.ndim());
  const bool writable = array.writeable();
  const void* const data = array.data();
  return freed_without_gil<const Value>(
      Value::over(data, to_element_type(type), shape, Device::cpu(), keep(std::move(array)), writable));
}

// Over memory of which the caller knows an address alone, as in onnxruntime's interface. Its size is not checked.
ValuePointer over(std::uintptr_t address, const Shape& shape, int type, const Device& device, const py::object& owner) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): what onnxruntime's interface takes
  auto* const memory = reinterpret_cast<void*>(address);
  return freed_without_gil<const Value>(
      Value::over(memory, to_element_type(type), shape, device, keep(owner.is_none() ? py::object() : owner)));
}

py::object to_numpy(const py::object& self) {
  const auto& value = self.cast<const Value&>();
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

void update(const Value& value, const py::array& given) {
  if (value.element_type() == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
    throw Error(ErrorKind::not_implemented, "strings cannot be updated in place");
  }
  // Of the newer types NumPy has arrays of their bits alone.
  const ElementType* type = find_element_type(value.element_type());
  const bool in_numpy = type != nullptr && type->numpy >= 0;
  const auto source = in_numpy ? from_array(given, Device::cpu()) : from_array_as(given, value.element_type());
  if (source->element_type() != value.element_type()) {
    throw Error(ErrorKind::invalid_type,
                "this OrtValue is " + value.type() + "; got an array of dtype " + name_of(given.dtype()));
  }
  const ReleaseGil nogil;
  value.copy_from(*source);
}

py::object to_dlpack(const ValuePointer& self, bool bool_is_uint8) {
  const Value& value = *self;
  const auto type = dlpack::type_of(value.element_type(), bool_is_uint8);
  if (!type) {
    throw Error(ErrorKind::not_implemented, "DLPack has no " + value.type() + " as onnxruntime gives it");
  }
  if (!value.writable()) {
    PyErr_SetString(PyExc_BufferError, "this OrtValue is over a read-only array, which DLPack cannot say");
    throw py::error_already_set();
  }
  return dlpack::make_capsule(value.data(), value.device(), *type, value.shape(), self);
}

ValuePointer from_dlpack(py::handle capsule, bool is_bool, py::object source) {
  auto value = freed_without_gil(dlpack::take(capsule, is_bool, std::move(source)));
  if (const Device device = value->device(); device.is_cuda()) {
    // Who gave it made the default stream wait for its work; ONNX Runtime's streams do not wait for that one.
    const ReleaseGil nogil;
    wait_for_default_stream(CudaStartup::instance(), device.index);
  }
  return value;
}

// A tensor's bytes as they are, of whichever type.
py::array bytes_of(const Value& value) {
  py::array_t<std::uint8_t> bytes(static_cast<py::ssize_t>(value.bytes()));
  void* target = bytes.mutable_data();
  without_gil([&] { value.copy_to_host(target); });
  return bytes;
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
  return found.is_none() ? nullptr : found.cast<ValuePointer>();
}

void register_value(py::module_& module) {
  module.def(
      "element_type_of", [](const py::dtype& dtype) { return static_cast<int>(element_type_of(dtype)); },
      py::arg("dtype"));

  py::class_<ElementType>(module, "ElementType")
      .def_readonly("onnx", &ElementType::onnx)
      .def_readonly("bits", &ElementType::bits)
      .def_readonly("over_memory", &ElementType::over_memory)
      .def_readonly("dtype", &ElementType::dtype)
      .def_readonly("protocol", &ElementType::protocol)
      .def_readonly("returned_as_bytes", &ElementType::returned_as_bytes)
      .def_property_readonly("is_float", &ElementType::is_float)
      .def_property_readonly("is_of_ml_dtypes", &ElementType::is_of_ml_dtypes);
  py::dict types;
  for (const ElementType& type : element_types()) {
    types[py::str(std::string("tensor(") + type.name + ")")] = py::cast(&type, py::return_value_policy::reference);
  }
  module.attr("element_types") = types;

  module.def("set_value_reader", [](py::object reader) { value_reader = reader.release().ptr(); }, py::arg("reader"));

  py::class_<Value, std::shared_ptr<Value>>(module, "OrtValue")
      .def_static(
          "allocate",
          [](const Shape& shape, int type, const Device& device) {
            return freed_without_gil(Value::allocate(to_element_type(type), shape, device));
          },
          py::arg("shape"), py::arg("element_type"), py::arg("device"), Nogil())
      .def_static("from_array", &from_array, py::arg("array"), py::arg("device"))
      .def_static("from_array_as", &from_array_as, py::arg("array"), py::arg("element_type"))
      .def_static("over", &over, py::arg("address"), py::arg("shape"), py::arg("element_type"), py::arg("device"),
                  py::arg("owner") = py::none())
      .def_static("from_dlpack", &from_dlpack, py::arg("capsule"), py::arg("is_bool"), py::arg("source"))
      .def("has_value", &Value::has_value)
      .def("is_writable", &Value::writable)
      .def("is_tensor", &Value::is_tensor)
      .def("data_type", &Value::type)
      .def("element_type", [](const Value& self) { return static_cast<int>(self.element_type()); })
      .def("shape", &Value::shape)
      .def("size_in_bytes", &Value::bytes)
      .def("device", &Value::device)
      .def("data_ptr", [](const Value& self) { return reinterpret_cast<std::uintptr_t>(self.data()); })
      .def("numpy", &to_numpy)
      .def("update", &update, py::arg("array"))
      .def("copy_from", &Value::copy_from, py::arg("source"), Nogil())
      .def("dlpack", &to_dlpack, py::arg("bool_is_uint8"))
      .def("dlpack_device", [](const Value& self) { return dlpack::device_of(self.device()); });
  module.def("bytes_of", &bytes_of, py::arg("value"));
}

}  // namespace ortmulti::bindings
