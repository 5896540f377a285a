#include "core/ort/value_info.hpp"

#include <utility>
#include <vector>

#include "core/onnx/element_types.hpp"

namespace ortmulti {
namespace {

template <typename Type>
ValueType read_type(const Type& type) {
  ValueType result;
  result.kind = type.GetONNXType();
  switch (result.kind) {
    case ONNX_TYPE_TENSOR:
    case ONNX_TYPE_SPARSETENSOR:
      result.element_type = type.GetTensorTypeAndShapeInfo().GetElementType();
      break;
    case ONNX_TYPE_SEQUENCE:
      result.of.push_back(read_type(type.GetSequenceTypeInfo().GetSequenceElementType()));
      break;
    case ONNX_TYPE_MAP: {
      const auto map = type.GetMapTypeInfo();
      result.element_type = map.GetMapKeyType();
      result.of.push_back(read_type(map.GetMapValueType()));
      break;
    }
    case ONNX_TYPE_OPTIONAL:
      result.of.push_back(read_type(type.GetOptionalTypeInfo().GetOptionalElementType()));
      break;
    default:
      break;
  }
  return result;
}

}  // namespace

std::string type_name(const ValueType& type) {
  const std::string element = element_type_name(type.element_type);
  switch (type.kind) {
    case ONNX_TYPE_TENSOR:
      return "tensor(" + element + ")";
    case ONNX_TYPE_SPARSETENSOR:
      return "sparse_tensor(" + element + ")";
    case ONNX_TYPE_SEQUENCE:
      return "seq(" + type_name(type.of.at(0)) + ")";
    case ONNX_TYPE_MAP:
      return "map(" + element + "," + type_name(type.of.at(0)) + ")";
    case ONNX_TYPE_OPTIONAL:
      return "optional(" + type_name(type.of.at(0)) + ")";
    default:
      return "unknown";
  }
}

ValueInfo make_value_info(std::string name, const Ort::TypeInfo& type) {
  ValueInfo info;
  info.name = std::move(name);
  info.value_type = read_type(type);
  info.type = type_name(info.value_type);
  info.is_tensor = info.value_type.kind == ONNX_TYPE_TENSOR;
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
