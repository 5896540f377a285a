#include "bindings/containers.hpp"

#include <pybind11/numpy.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "bindings/tensors.hpp"
#include "bindings/text.hpp"
#include "core/base/error.hpp"
#include "core/ort/empty_sequence.hpp"
#include "core/ort/library.hpp"

namespace ortmulti::bindings {
namespace {

// What the input is, what it takes and what it was given instead.
[[noreturn]] void refuse(const ValueInfo& declared, const std::string& expected, py::handle object) {
  throw Error(ErrorKind::invalid_type,
              described(declared) + ", which takes " + expected + "; got " + class_name(object));
}

// The type as ValueInfo has it, for one item of `declared`.
ValueInfo item_of(const ValueInfo& declared, const ValueType& type) {
  ValueInfo item;
  item.name = declared.name;
  item.type = type_name(type);
  item.value_type = type;
  item.is_tensor = type.kind == ONNX_TYPE_TENSOR;
  item.element_type = type.element_type;
  return item;
}

// One call that Python answers. Exceptions for an item that does not fit become ours; others are passed on.
template <typename Result, typename Convert>
Result convert(const ValueInfo& declared, const char* what, py::handle item, const Convert& function) {
  const Result result = function(item.ptr());
  if (PyErr_Occurred() == nullptr) {
    return result;
  }
  if (PyErr_ExceptionMatches(PyExc_TypeError) == 0 && PyErr_ExceptionMatches(PyExc_ValueError) == 0 &&
      PyErr_ExceptionMatches(PyExc_OverflowError) == 0) {
    throw py::error_already_set();
  }
  const py::error_already_set error;
  throw Error(ErrorKind::invalid_type, described(declared) + " and cannot take " + py::repr(item).cast<std::string>() +
                                           " as " + what + ": " + py::str(error.value()).cast<std::string>());
}

std::int64_t to_int64(PyObject* object) {
  const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(object));
  return index ? PyLong_AsLongLong(index.ptr()) : -1;
}

// A map's keys or values as a tensor, which ONNX Runtime copies into its map.
Ort::Value column(const ValueInfo& declared, const char* what, ONNXTensorElementDataType type, const py::list& items,
                  std::size_t part) {
  Ort::Value value = new_tensor(type, {static_cast<std::int64_t>(items.size())});
  for (std::size_t i = 0; i < items.size(); ++i) {
    const py::object item = py::reinterpret_borrow<py::tuple>(items[i])[part];
    switch (type) {
      case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64:
        value.GetTensorMutableData<std::int64_t>()[i] = convert<std::int64_t>(declared, what, item, &to_int64);
        break;
      case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
        value.GetTensorMutableData<float>()[i] =
            static_cast<float>(convert<double>(declared, what, item, &PyFloat_AsDouble));
        break;
      case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE:
        value.GetTensorMutableData<double>()[i] = convert<double>(declared, what, item, &PyFloat_AsDouble);
        break;
      case ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING: {
        Py_ssize_t size = 0;
        const char* text = convert<const char*>(declared, what, item, [&](PyObject* object) -> const char* {
          if (PyUnicode_Check(object) == 0) {
            PyErr_SetString(PyExc_TypeError, "it takes a str");
            return nullptr;
          }
          return PyUnicode_AsUTF8AndSize(object, &size);
        });
        std::copy_n(text, size, value.GetResizedStringTensorElementBuffer(i, static_cast<std::size_t>(size)));
        break;
      }
      default:
        throw Error(ErrorKind::not_implemented,
                    described(declared) + ", and a map of such " + what + "s cannot be fed");
    }
  }
  return value;
}

Ort::Value map_value(const ValueInfo& declared, const ValueType& type, py::handle object) {
  if (PyDict_Check(object.ptr()) == 0) {
    refuse(declared, "a dict", object);
  }
  if (PyDict_GET_SIZE(object.ptr()) == 0) {
    throw Error(ErrorKind::invalid_argument, described(declared) + ", which takes a dict with at least one key");
  }
  // Of their own: converting an item may call Python, which may change the dict.
  const py::list items(object.attr("items")());
  const Ort::Value keys = column(declared, "key", type.element_type, items, 0);
  const Ort::Value values = column(declared, "value", type.of.at(0).element_type, items, 1);
  return Ort::Value::CreateMap(keys, values);
}

Ort::Value sequence_value(const ValueInfo& declared, const ValueType& type, py::handle object, InputMemory& memory) {
  const ValueType& item_type = type.of.at(0);
  const bool of_tensors = item_type.kind == ONNX_TYPE_TENSOR;
  const char* const expected = of_tensors ? "a list of arrays" : "a list of dicts";
  if (PyList_Check(object.ptr()) == 0 && PyTuple_Check(object.ptr()) == 0) {
    refuse(declared, expected, object);
  }
  const py::tuple items(py::reinterpret_borrow<py::object>(object));
  if (items.empty()) {
    if (of_tensors) {
      return make_empty_sequence(OnnxRuntime::get(), item_type.element_type);
    }
    throw Error(ErrorKind::not_implemented, described(declared) + ", and a list without a dict cannot be fed");
  }
  ValueInfo item = item_of(declared, item_type);
  std::vector<Ort::Value> values;
  values.reserve(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    item.name = declared.name + "[" + std::to_string(i) + "]";
    if (!of_tensors) {
      values.push_back(map_value(item, item_type, items[i]));
      continue;
    }
    if (!py::isinstance<py::array>(items[i])) {
      refuse(item, "an array", items[i]);
    }
    values.push_back(to_value(item, items[i], memory));
  }
  return Ort::Value::CreateSequence(values);
}

bool can_be_fed(const ValueType& type) {
  switch (type.kind) {
    case ONNX_TYPE_TENSOR:
      return true;
    case ONNX_TYPE_MAP:
      return type.of.at(0).kind == ONNX_TYPE_TENSOR;
    case ONNX_TYPE_SEQUENCE:
      return (type.of.at(0).kind == ONNX_TYPE_TENSOR || type.of.at(0).kind == ONNX_TYPE_MAP) &&
             can_be_fed(type.of.at(0));
    default:
      return false;
  }
}

py::list to_list(const Ort::Value& value, const std::string& name, const InputMemory& memory) {
  const Ort::AllocatorWithDefaultOptions allocator;
  const std::size_t count = value.GetCount();
  py::list list(count);
  for (std::size_t i = 0; i < count; ++i) {
    list[i] = to_python(value.GetValue(static_cast<int>(i), allocator), name, memory);
  }
  return list;
}

// The keys of a map (0) or its values (1), which lie in one tensor.
py::list items_of(const Ort::Value& map, int part) {
  const Ort::AllocatorWithDefaultOptions allocator;
  return array_over(map.GetValue(part, allocator), py::none()).attr("tolist")();
}

py::dict to_dict(const Ort::Value& value) {
  const py::list keys = items_of(value, 0);
  const py::list values = items_of(value, 1);
  py::dict dict;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    dict[keys[i]] = values[i];
  }
  return dict;
}

}  // namespace

bool InputMemory::has(const Ort::Value& output) const {
  if (output.GetTensorTypeAndShapeInfo().GetElementType() == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
    return false;
  }
  const void* const data = output.GetTensorRawData();
  const auto lies_in = [address = reinterpret_cast<std::uintptr_t>(data)](const py::object& held) {
    const auto array = py::reinterpret_borrow<py::array>(held);
    return address - reinterpret_cast<std::uintptr_t>(array.data()) < static_cast<std::uintptr_t>(array.nbytes());
  };
  return std::ranges::any_of(arrays, lies_in) ||
         std::ranges::any_of(values, [&](const auto& value) { return value->contains(data); });
}

Ort::Value to_value(const ValueInfo& declared, py::handle object, InputMemory& memory) {
  if (declared.is_tensor) {
    Input input = to_input(declared, object);
    if (input.array) {
      memory.arrays.push_back(std::move(input.array));
    }
    return input.take_value();
  }
  const bool optional = declared.value_type.kind == ONNX_TYPE_OPTIONAL;
  const ValueType& type = optional ? declared.value_type.of.at(0) : declared.value_type;
  if (!can_be_fed(type)) {
    throw Error(ErrorKind::not_implemented, described(declared) + ", which cannot be fed from Python");
  }
  if (optional && object.is_none()) {
    return Ort::Value{nullptr};
  }
  try {
    switch (type.kind) {
      case ONNX_TYPE_SEQUENCE:
        return sequence_value(declared, type, object, memory);
      case ONNX_TYPE_MAP:
        return map_value(declared, type, object);
      default: {
        ValueInfo tensor = item_of(declared, type);
        tensor.type = declared.type;
        return to_value(tensor, object, memory);
      }
    }
  } catch (const Ort::Exception& exception) {
    throw from_onnxruntime(exception, "input '" + declared.name + "' of " + declared.type);
  }
}

py::object to_python(Ort::Value value, const std::string& name, const InputMemory& memory) {
  if (!value || !value.HasValue()) {
    return py::none();
  }
  if (value.IsTensor()) {
    // The caller may free or change an input's memory before the output's.
    const bool copy = memory.has(value);
    return to_array(std::move(value), name, copy);
  }
  try {
    const ONNXType kind = value.GetTypeInfo().GetONNXType();
    if (kind == ONNX_TYPE_SEQUENCE) {
      return to_list(value, name, memory);
    }
    if (kind == ONNX_TYPE_MAP) {
      return to_dict(value);
    }
  } catch (const Ort::Exception& exception) {
    throw from_onnxruntime(exception, "output '" + name + "'");
  }
  throw Error(
      ErrorKind::not_implemented,
      "output '" + name + "' is no tensor, sequence, map or optional of these, and cannot be returned to Python");
}

}  // namespace ortmulti::bindings
