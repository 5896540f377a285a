#pragma once

#include <onnxruntime_cxx_api.h>
#include <pybind11/numpy.h>

#include <cstdint>

namespace ortmulti::bindings {

constexpr int of_ml_dtypes = -1;

/// A tensor's element type and its NumPy dtype: NumPy's own, or one that the package ml_dtypes adds.
struct ElementType {
  ONNXTensorElementDataType onnx = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  const char* name = "";     ///< Of the dtype, in NumPy or in ml_dtypes.
  int numpy = of_ml_dtypes;  ///< NumPy's type number; `of_ml_dtypes` where it has none.
  /// How many elements ONNX Runtime packs into a byte, the first one into the lowest bits; NumPy's take a byte each.
  unsigned per_byte = 1;
  /// Whether outputs come as uint8, as onnxruntime returns them.
  bool returned_as_bytes = false;

  bool packed() const noexcept { return per_byte > 1; }
};

/// Null where neither NumPy nor ml_dtypes has it.
const ElementType* find_element_type(ONNXTensorElementDataType type) noexcept;

/// Of NumPy's own dtypes, in any byte order; null for others.
const ElementType* find_element_type(const pybind11::dtype& dtype) noexcept;

/// Imports ml_dtypes if the dtype is one of its own; throws Error where it is not installed.
pybind11::dtype dtype_of(const ElementType& type);

/// Whether arrays of this dtype hold the type, in any byte order.
bool is_dtype_of(const ElementType& type, const pybind11::dtype& dtype);

/// The bytes of `count` elements, `type.per_byte` of them in each, to one element in the lowest bits of a byte, as
/// ml_dtypes has them, and back.
void unpack(const ElementType& type, const std::uint8_t* packed, std::uint8_t* elements, std::size_t count) noexcept;
void pack(const ElementType& type, const std::uint8_t* elements, std::uint8_t* packed, std::size_t count) noexcept;

}  // namespace ortmulti::bindings
