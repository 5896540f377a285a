#include "core/onnx/element_types.hpp"

#include <algorithm>
#include <cstddef>

namespace ortmulti {
namespace {

constexpr int ml_dtypes = -1;

// The columns are in the order of the members. NumPy has two numbers for 64-bit integers; on Linux they are NPY_LONG's.
constexpr ElementTypes types = {{
    {0, 0, "undefined", 0},
    {1, 1, "float", 32, true, "float32", 11, dlpack_code::floating_point, "FP32"},
    {2, 2, "uint8", 8, true, "uint8", 2, dlpack_code::unsigned_integer, "UINT8"},
    {3, 3, "int8", 8, true, "int8", 1, dlpack_code::signed_integer, "INT8"},
    {4, 4, "uint16", 16, true, "uint16", 4, dlpack_code::unsigned_integer, "UINT16"},
    {5, 5, "int16", 16, true, "int16", 3, dlpack_code::signed_integer, "INT16"},
    {6, 6, "int32", 32, true, "int32", 5, dlpack_code::signed_integer, "INT32"},
    {7, 7, "int64", 64, true, "int64", 7, dlpack_code::signed_integer, "INT64"},
    {8, 8, "string", 0, false, "", -1, dlpack_code::none, "BYTES"},
    {9, 9, "bool", 8, true, "bool", 0, dlpack_code::boolean, "BOOL"},
    {10, 10, "float16", 16, true, "float16", 23, dlpack_code::floating_point, "FP16"},
    {11, 11, "double", 64, true, "float64", 12, dlpack_code::floating_point, "FP64"},
    {12, 12, "uint32", 32, true, "uint32", 6, dlpack_code::unsigned_integer, "UINT32"},
    {13, 13, "uint64", 64, true, "uint64", 8, dlpack_code::unsigned_integer, "UINT64"},
    {14, 14, "complex64", 64},
    {15, 15, "complex128", 128},
    {16, 16, "bfloat16", 16, true, "bfloat16", ml_dtypes, dlpack_code::bfloat, "BF16"},
    {17, 17, "float8e4m3fn", 8, true, "float8_e4m3fn", ml_dtypes, dlpack_code::float8_e4m3fn, "", true},
    {18, 18, "float8e4m3fnuz", 8, true, "float8_e4m3fnuz", ml_dtypes, dlpack_code::float8_e4m3fnuz},
    {19, 19, "float8e5m2", 8, true, "float8_e5m2", ml_dtypes, dlpack_code::float8_e5m2},
    {20, 20, "float8e5m2fnuz", 8, true, "float8_e5m2fnuz", ml_dtypes, dlpack_code::float8_e5m2fnuz},
    {21, 21, "uint4", 4, true, "uint4", ml_dtypes, dlpack_code::unsigned_integer},
    {22, 22, "int4", 4, true, "int4", ml_dtypes, dlpack_code::signed_integer},
    {23, 23, "float4e2m1", 4, false, "float4_e2m1fn"},
    {24, 25, "uint2", 2, false, "uint2"},
    {25, 26, "int2", 2, false, "int2"},
    {26, 24, "float8e8m0", 8, false, "float8_e8m0fnu"},
}};

}  // namespace

const ElementTypes& element_types() noexcept { return types; }

const ElementType* find_element_type(int number) noexcept {
  return number >= 0 && static_cast<std::size_t>(number) < types.size() ? &types[static_cast<std::size_t>(number)]
                                                                        : nullptr;
}

const char* element_type_name(int number) noexcept {
  const ElementType* type = find_element_type(number);
  return type == nullptr ? "unknown" : type->name;
}

const ElementType* find_onnx_type(int onnx) noexcept {
  const auto* const found = std::ranges::find(types, onnx, &ElementType::onnx);
  return found == types.end() ? nullptr : found;
}

unsigned element_bits(int onnx) noexcept {
  const ElementType* type = find_onnx_type(onnx);
  return type == nullptr ? 0 : type->bits;
}

}  // namespace ortmulti
