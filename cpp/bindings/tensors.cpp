#include "bindings/tensors.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string_view>

#include "bindings/text.hpp"
#include "core/base/error.hpp"
#include "core/onnx/element_types.hpp"

namespace ortmulti::bindings {
namespace {

static_assert(py::detail::npy_api::NPY_LONG_ == 7 && py::detail::npy_api::NPY_DOUBLE_ == 12,
              "the table of element types has NumPy's numbers");

// Null where there are no arrays of this type.
const ElementType* find_array_type(ONNXTensorElementDataType number) noexcept {
  const ElementType* type = find_element_type(number);
  return type != nullptr && type->has_dtype() ? type : nullptr;
}

// NumPy has two numbers for each 64-bit integer.
int canonical(int numpy) {
  switch (numpy) {
    case py::detail::npy_api::NPY_LONGLONG_:
      return py::detail::npy_api::NPY_LONG_;
    case py::detail::npy_api::NPY_ULONGLONG_:
      return py::detail::npy_api::NPY_ULONG_;
    default:
      return numpy;
  }
}

// Finds the type of one of NumPy's own dtypes, in any byte order. Returns null for others.
const ElementType* find_array_type(const py::dtype& dtype) noexcept {
  const int number = canonical(dtype.num());
  const auto& types = element_types();
  const auto* found = std::ranges::find_if(
      types, [number](const ElementType& type) { return type.has_dtype() && type.numpy == number; });
  return found == types.end() ? nullptr : found;
}

// Imports ml_dtypes if the dtype is one of its own; throws Error where it is not installed.
py::dtype dtype_of(const ElementType& type) {
  if (!type.is_of_ml_dtypes()) {
    return py::dtype(type.numpy);
  }
  try {
    return py::dtype::from_args(py::module_::import("ml_dtypes").attr(type.dtype));
  } catch (const py::error_already_set& error) {
    if (error.matches(PyExc_ImportError) || error.matches(PyExc_AttributeError)) {
      throw Error(ErrorKind::not_implemented, std::string("tensor(") + type.name + ") needs " + type.dtype +
                                                  " of the package ml_dtypes: pip install -U ml_dtypes");
    }
    throw;
  }
}

// Whether arrays of this dtype hold the type, in any byte order.
bool is_dtype_of(const ElementType& type, const py::dtype& dtype) {
  constexpr int first_of_users = 256;  // NumPy's own have lower numbers
  if (!type.is_of_ml_dtypes()) {
    return canonical(dtype.num()) == type.numpy;
  }
  return dtype.num() >= first_of_users && dtype.num() == dtype_of(type).num();
}

// The bytes of `count` packed elements, to one element in the lowest bits of a byte, as ml_dtypes has them, and back.
void unpack(const ElementType& type, const std::uint8_t* packed, std::uint8_t* elements, std::size_t count) noexcept {
  const unsigned per_byte = type.per_byte();
  const unsigned bits = 8U / per_byte;
  const unsigned mask = (1U << bits) - 1U;
  for (std::size_t i = 0; i < count; ++i) {
    const auto shift = static_cast<unsigned>(i % per_byte) * bits;
    elements[i] = static_cast<std::uint8_t>((static_cast<unsigned>(packed[i / per_byte]) >> shift) & mask);
  }
}

void pack(const ElementType& type, const std::uint8_t* elements, std::uint8_t* packed, std::size_t count) noexcept {
  const unsigned per_byte = type.per_byte();
  const unsigned bits = 8U / per_byte;
  const unsigned mask = (1U << bits) - 1U;
  std::fill_n(packed, (count + per_byte - 1) / per_byte, std::uint8_t{0});
  for (std::size_t i = 0; i < count; ++i) {
    const auto shift = static_cast<unsigned>(i % per_byte) * bits;
    packed[i / per_byte] |= static_cast<std::uint8_t>((elements[i] & mask) << shift);
  }
}

std::vector<std::int64_t> shape_of(const py::array& array) { return {array.shape(), array.shape() + array.ndim()}; }

Ort::Value value_over(const py::array& array, ONNXTensorElementDataType type) {
  const std::vector<std::int64_t> shape = shape_of(array);
  return ortmulti::value_over(array.data(), type, shape.data(), shape.size());
}

// Writes the item's text into the tensor; with its length, since NUL is a character like any other.
void set_string(Ort::Value& value, std::size_t index, py::handle item) {
  const auto write = [&](std::string_view text) {
    std::ranges::copy(text, value.GetResizedStringTensorElementBuffer(index, text.size()));
  };
  if (PyBytes_Check(item.ptr()) != 0) {
    write(py::reinterpret_borrow<py::bytes>(item));
    return;
  }
  const py::str text(item);
  write(utf8_of(text));
}

Ort::Value string_value(const py::array& array) {
  Ort::Value value = new_tensor(ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, shape_of(array));
  if (array.dtype().kind() == 'V') {  // np.void: all bytes count, also NULs at the end
    const py::array bytes = py::module_::import("numpy").attr("ascontiguousarray")(array);
    const auto size = static_cast<std::size_t>(array.itemsize());
    const char* data = static_cast<const char*>(bytes.data());
    for (std::size_t i = 0; i < static_cast<std::size_t>(array.size()); ++i, data += size) {
      std::copy_n(data, size, value.GetResizedStringTensorElementBuffer(i, size));
    }
    return value;
  }
  std::size_t index = 0;
  for (const py::handle item : array.attr("ravel")().attr("tolist")()) {
    set_string(value, index++, item);
  }
  return value;
}

// What ONNX Runtime packs cannot lie in an array's memory.
Ort::Value packed_value(const ElementType& type, const py::array& array) {
  Ort::Value value = new_tensor(static_cast<ONNXTensorElementDataType>(type.number), shape_of(array));
  if (array.size() > 0) {
    pack(type, static_cast<const std::uint8_t*>(array.data()),
         static_cast<std::uint8_t*>(value.GetTensorMutableRawData()), static_cast<std::size_t>(array.size()));
  }
  return value;
}

bool holds_strings(const py::dtype& dtype) {
  const char kind = dtype.kind();
  // The types of ml_dtypes have the kind of np.void.
  const bool is_void = dtype.num() == py::detail::npy_api::NPY_VOID_ && !dtype.has_fields();
  return kind == 'U' || kind == 'S' || kind == 'O' || kind == 'T' || is_void;
}

[[noreturn]] void refuse_dtype(const ValueInfo& declared, const py::array& array, const std::string& dtype) {
  const std::string found = name_of(array.dtype());
  const bool number = array.dtype().kind() != 'O' && dtype.find(' ') == std::string::npos;
  throw Error(ErrorKind::invalid_type,
              described(declared) + ", which takes an array of dtype " + dtype + "; got dtype " + found +
                  (number ? ": convert it with array.astype(" +
                                (dtype.starts_with("ml_dtypes") ? dtype : "numpy." + dtype) + ")"
                          : ""));
}

// `type` is null for strings.
py::array as_array(const ValueInfo& declared, py::handle object, const ElementType* type) {
  if (py::isinstance<py::array>(object)) {
    return py::reinterpret_borrow<py::array>(object);
  }
  if (object.is_none()) {
    throw Error(ErrorKind::invalid_type, "input '" + declared.name + "' is None; " + declared.type +
                                             " takes an array: pass one, for example numpy.zeros(shape)");
  }
  const py::dtype dtype = type == nullptr ? py::dtype("O") : dtype_of(*type);
  try {
    return py::module_::import("numpy").attr("asarray")(object, py::arg("dtype") = dtype);
  } catch (const py::error_already_set& error) {
    if (error.matches(PyExc_ValueError) || error.matches(PyExc_TypeError)) {
      throw Error(ErrorKind::invalid_type, described(declared) + " and NumPy cannot make such an array from " +
                                               class_name(object) + ": " + py::str(error.value()).cast<std::string>());
    }
    throw;
  }
}

// A tensor without elements may have dimensions whose product NumPy refuses.
py::array new_array(const py::dtype& dtype, const std::vector<py::ssize_t>& shape) {
  try {
    return py::array(dtype, shape);
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_ValueError)) {
      throw;
    }
    const py::tuple dimensions(shape.size());
    for (std::size_t i = 0; i < shape.size(); ++i) {
      dimensions[i] = shape[i];
    }
    throw Error(ErrorKind::invalid_argument, "NumPy cannot have an array of the value's shape " +
                                                 py::repr(dimensions).cast<std::string>() +
                                                 ": keep the value as an OrtValue");
  }
}

// Returns the type of an output and the dtype of its array.
std::pair<const ElementType*, py::dtype> output_type(ONNXTensorElementDataType number, const std::string& name) {
  const ElementType* type = find_array_type(number);
  if (type == nullptr) {
    throw Error(ErrorKind::not_implemented,
                "output '" + name + "' is tensor(" + element_type_name(number) + "), for which NumPy has no dtype");
  }
  return {type, type->returned_as_bytes ? py::dtype(py::detail::npy_api::NPY_UBYTE_) : dtype_of(*type)};
}

py::object string_array(const Ort::Value& value, const std::vector<py::ssize_t>& shape, std::size_t count) {
  py::array result = new_array(py::dtype("O"), shape);
  auto** items = static_cast<PyObject**>(result.mutable_data());
  for (std::size_t i = 0; i < count; ++i) {
    PyObject* previous = std::exchange(items[i], decode(value.GetStringTensorElement(i), nullptr).release().ptr());
    Py_XDECREF(previous);
  }
  return result;
}

}  // namespace

Input to_input(const ValueInfo& declared, py::handle object) {
  Input input;
  if (declared.element_type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
    const py::array array = as_array(declared, object, nullptr);
    if (!holds_strings(array.dtype())) {
      refuse_dtype(declared, array, "str, bytes, object or void");
    }
    input.value = string_value(array);
    return input;
  }
  const ElementType* type = find_array_type(declared.element_type);
  if (type == nullptr) {
    throw Error(ErrorKind::not_implemented, described(declared) + ", for which NumPy has no dtype");
  }
  py::array array = as_array(declared, object, type);
  if (!is_dtype_of(*type, array.dtype())) {
    refuse_dtype(declared, array, (type->is_of_ml_dtypes() ? "ml_dtypes." : "") + std::string(type->dtype));
  }
  const bool native = array.dtype().byteorder() != '>';
  if (!native || (array.flags() & py::array::c_style) == 0 ||
      (array.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_) == 0) {
    array = py::module_::import("numpy").attr("require")(array, dtype_of(*type), "CA");
  }
  if (type->is_packed()) {
    input.value = packed_value(*type, array);
    return input;
  }
  if (static_cast<std::size_t>(array.ndim()) > HostTensor::max_dimensions) {
    input.value = value_over(array, declared.element_type);
  } else {
    input.tensor.type = declared.element_type;
    input.tensor.rank = static_cast<std::size_t>(array.ndim());
    std::copy_n(array.shape(), input.tensor.rank, input.tensor.shape.begin());
    input.tensor.data = array.data();
  }
  input.array = std::move(array);
  return input;
}

py::object copied_rows(ONNXTensorElementDataType type, const std::vector<std::int64_t>& shape, std::size_t count,
                       const void* data, std::size_t bytes, const std::string& name) {
  py::dtype dtype = output_type(type, name).second;
  std::array<Py_intptr_t, HostTensor::max_dimensions> dimensions{};
  py::object array;
  if (shape.size() > dimensions.size()) {
    std::vector<py::ssize_t> all(shape.begin(), shape.end());
    all.front() = static_cast<py::ssize_t>(count);
    array = new_array(dtype, all);
  } else {
    std::ranges::copy(shape, dimensions.begin());
    dimensions.front() = static_cast<Py_intptr_t>(count);
    // py::array would allocate twice.
    const auto& numpy = py::detail::npy_api::get();
    array =
        owned(numpy.PyArray_NewFromDescr_(numpy.PyArray_Type_, dtype.release().ptr(), static_cast<int>(shape.size()),
                                          dimensions.data(), nullptr, nullptr, 0, nullptr));
  }
  std::memcpy(py::detail::array_proxy(array.ptr())->data, data, bytes);
  return array;
}

py::object to_array(Ort::Value value, const std::string& name, bool copy) {
  const Ort::TensorTypeAndShapeInfo info = value.GetTensorTypeAndShapeInfo();
  const std::vector<std::int64_t> dimensions = info.GetShape();
  const std::vector<py::ssize_t> shape(dimensions.begin(), dimensions.end());
  const std::size_t count = info.GetElementCount();
  if (info.GetElementType() == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
    return string_array(value, shape, count);
  }
  const auto& [type, dtype] = output_type(info.GetElementType(), name);
  if (count == 0) {
    return new_array(dtype, shape);
  }
  if (type->is_packed()) {
    py::array unpacked(dtype, shape);
    unpack(*type, static_cast<const std::uint8_t*>(value.GetTensorRawData()),
           static_cast<std::uint8_t*>(unpacked.mutable_data()), count);
    return unpacked;
  }
  if (copy) {
    return py::array(dtype, shape, value.GetTensorRawData());
  }
  auto owned = std::make_unique<Ort::Value>(std::move(value));
  const void* data = owned->GetTensorRawData();
  const py::capsule owner(owned.get(), [](void* pointer) { delete static_cast<Ort::Value*>(pointer); });
  static_cast<void>(owned.release());  // NOLINT(bugprone-unused-return-value): the capsule's now
  return py::array(dtype, shape, data, owner);
}

ONNXTensorElementDataType element_type_of(const py::dtype& dtype) {
  if (const ElementType* entry = find_array_type(dtype); entry != nullptr) {
    return static_cast<ONNXTensorElementDataType>(entry->number);
  }
  if (holds_strings(dtype)) {
    return ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING;
  }
  throw Error(ErrorKind::invalid_type, "ONNX Runtime has no tensors of dtype " + name_of(dtype));
}

py::dtype dtype_of(ONNXTensorElementDataType type) {
  if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
    return py::dtype("O");
  }
  const ElementType* entry = find_array_type(type);
  if (entry == nullptr || entry->is_of_ml_dtypes()) {
    throw Error(ErrorKind::not_implemented,
                std::string("the value is tensor(") + element_type_name(type) + "), for which NumPy has no dtype");
  }
  return py::dtype(entry->numpy);
}

py::dtype array_dtype_of(ONNXTensorElementDataType type) {
  const ElementType* entry = find_array_type(type);
  return entry != nullptr && entry->is_of_ml_dtypes() ? dtype_of(*entry) : dtype_of(type);
}

py::object array_over(const Ort::Value& tensor, py::handle owner) {
  const Ort::TensorTypeAndShapeInfo info = tensor.GetTensorTypeAndShapeInfo();
  const std::vector<std::int64_t> dimensions = info.GetShape();
  const std::vector<py::ssize_t> shape(dimensions.begin(), dimensions.end());
  const py::dtype dtype = dtype_of(info.GetElementType());
  if (info.GetElementType() == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
    return string_array(tensor, shape, info.GetElementCount());
  }
  if (info.GetElementCount() == 0) {
    return new_array(dtype, shape);
  }
  return py::array(dtype, shape, tensor.GetTensorRawData(), owner);
}

}  // namespace ortmulti::bindings
