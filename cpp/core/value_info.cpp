#include "core/value_info.hpp"

#include <array>
#include <utility>
#include <vector>

namespace ortmulti {
namespace {

std::string tensor_type(ONNXTensorElementDataType type) {
  return std::string("tensor(") + element_type_name(type) + ")";
}

template <typename Type>
std::string type_name(const Type& type) {
  switch (type.GetONNXType()) {
    case ONNX_TYPE_TENSOR:
      return tensor_type(type.GetTensorTypeAndShapeInfo().GetElementType());
    case ONNX_TYPE_SPARSETENSOR:
      return "sparse_" + tensor_type(type.GetTensorTypeAndShapeInfo().GetElementType());
    case ONNX_TYPE_SEQUENCE:
      return "seq(" + type_name(type.GetSequenceTypeInfo().GetSequenceElementType()) + ")";
    case ONNX_TYPE_MAP: {
      const auto map = type.GetMapTypeInfo();
      return std::string("map(") + element_type_name(map.GetMapKeyType()) + "," + type_name(map.GetMapValueType()) +
             ")";
    }
    case ONNX_TYPE_OPTIONAL:
      return "optional(" + type_name(type.GetOptionalTypeInfo().GetOptionalElementType()) + ")";
    default:
      return "unknown";
  }
}

}  // namespace

const char* element_type_name(ONNXTensorElementDataType type) noexcept {
  constexpr std::array<const char*, 24> names = {
      "undefined",      "float",      "uint8",          "int8",       "uint16",   "int16",
      "int32",          "int64",      "string",         "bool",       "float16",  "double",
      "uint32",         "uint64",     "complex64",      "complex128", "bfloat16", "float8e4m3fn",
      "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "uint4",      "int4",     "float4e2m1"};
  const auto index = static_cast<std::size_t>(type);
  return index < names.size() ? names[index] : "unknown";
}

ValueInfo make_value_info(std::string name, const Ort::TypeInfo& type) {
  ValueInfo info;
  info.name = std::move(name);
  info.type = type_name(type);
  info.is_tensor = type.GetONNXType() == ONNX_TYPE_TENSOR;
  if (info.is_tensor) {
    const auto tensor = type.GetTensorTypeAndShapeInfo();
    info.element_type = tensor.GetElementType();
    info.shape = tensor.GetShape();
    std::vector<const char*> names(info.shape.size());
    tensor.GetSymbolicDimensions(names.data(), names.size());
    for (const char* dimension : names) {
      info.dimension_names.emplace_back(dimension == nullptr ? "" : dimension);
    }
  }
  return info;
}

Metadata read_metadata(const Ort::ModelMetadata& metadata) {
  const Ort::AllocatorWithDefaultOptions allocator;
  Metadata result;
  result.producer_name = metadata.GetProducerNameAllocated(allocator).get();
  result.graph_name = metadata.GetGraphNameAllocated(allocator).get();
  result.domain = metadata.GetDomainAllocated(allocator).get();
  result.description = metadata.GetDescriptionAllocated(allocator).get();
  result.graph_description = metadata.GetGraphDescriptionAllocated(allocator).get();
  result.version = metadata.GetVersion();
  for (const auto& key : metadata.GetCustomMetadataMapKeysAllocated(allocator)) {
    const auto value = metadata.LookupCustomMetadataMapAllocated(key.get(), allocator);
    result.custom.emplace(key.get(), value ? value.get() : "");
  }
  return result;
}

}  // namespace ortmulti
