#include "bindings/element_types.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "core/base/error.hpp"
#include "core/ort/value_info.hpp"

namespace py = pybind11;

namespace ortmulti::bindings {
namespace {

constexpr int numpy_half = 23;  // pybind11 does not name NPY_HALF

// Younger than the oldest headers.
constexpr auto onnx_float4e2m1 = static_cast<ONNXTensorElementDataType>(23);
constexpr auto onnx_uint2 = static_cast<ONNXTensorElementDataType>(24);
constexpr auto onnx_int2 = static_cast<ONNXTensorElementDataType>(25);
constexpr auto onnx_float8e8m0 = static_cast<ONNXTensorElementDataType>(26);

// NumPy has two numbers for each size of integer; int64 is NPY_LONG on Linux and NPY_LONGLONG is its equal.
constexpr std::array<ElementType, 23> element_types = {{
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, "float32", py::detail::npy_api::NPY_FLOAT_},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, "uint8", py::detail::npy_api::NPY_UBYTE_},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, "int8", py::detail::npy_api::NPY_BYTE_},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16, "uint16", py::detail::npy_api::NPY_USHORT_},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16, "int16", py::detail::npy_api::NPY_SHORT_},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, "int32", py::detail::npy_api::NPY_INT_},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, "int64", py::detail::npy_api::NPY_LONG_},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, "bool", py::detail::npy_api::NPY_BOOL_},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, "float16", numpy_half},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, "float64", py::detail::npy_api::NPY_DOUBLE_},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32, "uint32", py::detail::npy_api::NPY_UINT_},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64, "uint64", py::detail::npy_api::NPY_ULONG_},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, "bfloat16", of_ml_dtypes},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN, "float8_e4m3fn", of_ml_dtypes, 1, true},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FNUZ, "float8_e4m3fnuz", of_ml_dtypes},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2, "float8_e5m2", of_ml_dtypes},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2FNUZ, "float8_e5m2fnuz", of_ml_dtypes},
    {onnx_float8e8m0, "float8_e8m0fnu", of_ml_dtypes},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT4, "uint4", of_ml_dtypes, 2},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4, "int4", of_ml_dtypes, 2},
    {onnx_float4e2m1, "float4_e2m1fn", of_ml_dtypes, 2},
    {onnx_uint2, "uint2", of_ml_dtypes, 4},
    {onnx_int2, "int2", of_ml_dtypes, 4},
}};

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

}  // namespace

const ElementType* find_element_type(ONNXTensorElementDataType type) noexcept {
  for (const ElementType& entry : element_types) {
    if (entry.onnx == type) {
      return &entry;
    }
  }
  return nullptr;
}

const ElementType* find_element_type(const py::dtype& dtype) noexcept {
  const int number = canonical(dtype.num());
  for (const ElementType& entry : element_types) {
    if (entry.numpy == number) {
      return &entry;
    }
  }
  return nullptr;
}

py::dtype dtype_of(const ElementType& type) {
  if (type.numpy != of_ml_dtypes) {
    return py::dtype(type.numpy);
  }
  try {
    return py::dtype::from_args(py::module_::import("ml_dtypes").attr(type.name));
  } catch (const py::error_already_set& error) {
    if (error.matches(PyExc_ImportError) || error.matches(PyExc_AttributeError)) {
      throw Error(ErrorKind::not_implemented, std::string("tensor(") + element_type_name(type.onnx) + ") needs " +
                                                  type.name + " of the package ml_dtypes: pip install -U ml_dtypes");
    }
    throw;
  }
}

bool is_dtype_of(const ElementType& type, const py::dtype& dtype) {
  constexpr int first_of_users = 256;  // NumPy's own have lower numbers
  if (type.numpy != of_ml_dtypes) {
    return canonical(dtype.num()) == type.numpy;
  }
  return dtype.num() >= first_of_users && dtype.num() == dtype_of(type).num();
}

void unpack(const ElementType& type, const std::uint8_t* packed, std::uint8_t* elements, std::size_t count) noexcept {
  const unsigned bits = 8U / type.per_byte;
  const unsigned mask = (1U << bits) - 1U;
  for (std::size_t i = 0; i < count; ++i) {
    const auto shift = static_cast<unsigned>(i % type.per_byte) * bits;
    elements[i] = static_cast<std::uint8_t>((static_cast<unsigned>(packed[i / type.per_byte]) >> shift) & mask);
  }
}

void pack(const ElementType& type, const std::uint8_t* elements, std::uint8_t* packed, std::size_t count) noexcept {
  const unsigned bits = 8U / type.per_byte;
  const unsigned mask = (1U << bits) - 1U;
  std::fill_n(packed, (count + type.per_byte - 1) / type.per_byte, std::uint8_t{0});
  for (std::size_t i = 0; i < count; ++i) {
    const auto shift = static_cast<unsigned>(i % type.per_byte) * bits;
    packed[i / type.per_byte] |= static_cast<std::uint8_t>((elements[i] & mask) << shift);
  }
}

}  // namespace ortmulti::bindings
