#pragma once

#include <array>
#include <string_view>

namespace ortmulti {

/// DLPack's codes of element types (DLDataTypeCode).
namespace dlpack_code {
constexpr int none = -1;
constexpr int signed_integer = 0;
constexpr int unsigned_integer = 1;
constexpr int floating_point = 2;
constexpr int bfloat = 4;
constexpr int boolean = 6;
constexpr int float8_e4m3fn = 10;
constexpr int float8_e4m3fnuz = 11;
constexpr int float8_e5m2 = 12;
constexpr int float8_e5m2fnuz = 13;
}  // namespace dlpack_code

/// An element type of tensors: its numbers and names in ONNX Runtime, ONNX, NumPy, DLPack and the Open Inference
/// Protocol. Python has the same as `_core.element_types`.
struct ElementType {
  int number = 0;            ///< ONNX Runtime's ONNXTensorElementDataType.
  int onnx = 0;              ///< ONNX's TensorProto.DataType.
  const char* name = "";     ///< "float", "int64": as in ONNX Runtime's "tensor(float)".
  unsigned bits = 0;         ///< Of one element; 0 for strings. Types below 8 bits are packed into bytes.
  bool over_memory = false;  ///< Whether ONNX Runtime makes tensors of this type over existing memory.
  const char* dtype = "";    ///< The dtype's name in NumPy or ml_dtypes; empty: there are no arrays of this type.
  int numpy = -1;            ///< NumPy's type number; negative for dtypes of ml_dtypes.
  int dlpack = dlpack_code::none;
  const char* protocol = "";       ///< The Open Inference Protocol's datatype; empty: it has none.
  bool returned_as_bytes = false;  ///< Whether runs return arrays of uint8, as onnxruntime does.

  bool has_dtype() const noexcept { return *dtype != '\0'; }
  /// Complex numbers are none.
  bool is_float() const noexcept { return std::string_view(dtype).find("float") != std::string_view::npos; }
  bool is_of_ml_dtypes() const noexcept { return has_dtype() && numpy < 0; }
  /// The first element lies in the lowest bits.
  unsigned per_byte() const noexcept { return bits == 0 || bits >= 8 ? 1 : 8 / bits; }
  bool is_packed() const noexcept { return per_byte() > 1; }
};

using ElementTypes = std::array<ElementType, 27>;

/// All types, ordered by ONNX Runtime's number. ONNX Runtime's headers of older releases do not name the last ones.
const ElementTypes& element_types() noexcept;

/// By ONNX Runtime's number; null for an unknown one.
const ElementType* find_element_type(int number) noexcept;

/// By ONNX's number; null for an unknown one.
const ElementType* find_onnx_type(int onnx) noexcept;

/// The type's name; "unknown" for an unknown number.
const char* element_type_name(int number) noexcept;

/// Bits of one element by ONNX's number; 0 for strings and unknown types.
unsigned element_bits(int onnx) noexcept;

}  // namespace ortmulti
