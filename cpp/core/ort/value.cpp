#include "core/ort/value.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/base/error.hpp"
#include "core/base/hash.hpp"
#include "core/base/text.hpp"
#include "core/cuda/memory.hpp"
#include "core/onnx/element_types.hpp"
#include "core/ort/checked.hpp"
#include "core/ort/library.hpp"

namespace ortmulti {
namespace {

ValueType read_type(const auto& type) {
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

unsigned bits_of(ONNXTensorElementDataType type) {
  const ElementType* found = find_element_type(type);
  if (found == nullptr || found->bits == 0) {
    throw Error(ErrorKind::not_implemented, "elements of type " + std::to_string(static_cast<int>(type)) + " (" +
                                                element_type_name(type) + ") have no fixed size");
  }
  return found->bits;
}

std::string text_of(const std::vector<std::int64_t>& shape) {
  return "[" + listed(shape, [](std::int64_t size) { return std::to_string(size); }) + "]";
}

constexpr const char* making = "making a value";

bool holds_strings(ONNXTensorElementDataType type) { return type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING; }

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

std::vector<const char*> name_pointers(const std::vector<ValueInfo>& values) {
  std::vector<const char*> names;
  names.reserve(values.size());
  for (const ValueInfo& value : values) {
    names.push_back(value.name.c_str());
  }
  return names;
}

std::size_t tensor_bytes(ONNXTensorElementDataType type, const std::vector<std::int64_t>& shape) {
  const unsigned bits = bits_of(type);
  std::uint64_t count = 1;
  bool fits = true;
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0) {
      throw Error(ErrorKind::invalid_argument, "a shape has no negative dimension: " + text_of(shape));
    }
    empty = empty || size == 0;
    fits = fits && !__builtin_mul_overflow(count, static_cast<std::uint64_t>(size), &count);
  }
  std::uint64_t all_bits = 0;
  fits = fits && !__builtin_mul_overflow(count, static_cast<std::uint64_t>(bits), &all_bits) &&
         all_bits / 8 < static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (empty) {
    return 0;
  }
  if (!fits) {
    throw Error(ErrorKind::invalid_argument, "no memory has room for a tensor of shape " + text_of(shape));
  }
  return (all_bits + 7) / 8;
}

std::size_t tensor_bytes(const Ort::Value& tensor) {
  const auto info = tensor.GetTensorTypeAndShapeInfo();
  return tensor_bytes(info.GetElementType(), info.GetShape());
}

Ort::Value copy_on_host(const Ort::Value& tensor) {
  const auto info = tensor.GetTensorTypeAndShapeInfo();
  Ort::Value copy = new_tensor(info.GetElementType(), info.GetShape());
  const std::size_t bytes = tensor_bytes(tensor);
  if (const Device device = device_of(tensor.GetTensorMemoryInfo()); bytes != 0 && device.is_cuda()) {
    copy_to_host(CudaStartup::instance(), device.index, copy.GetTensorMutableRawData(), tensor.GetTensorRawData(),
                 bytes);
  } else if (bytes != 0) {
    std::memcpy(copy.GetTensorMutableRawData(), tensor.GetTensorRawData(), bytes);
  }
  return copy;
}

bool same_bits(const Ort::Value& left, const Ort::Value& right) {
  const std::size_t bytes = tensor_bytes(left);
  return bytes == tensor_bytes(right) &&
         (bytes == 0 || std::memcmp(left.GetTensorRawData(), right.GetTensorRawData(), bytes) == 0);
}

bool describe(const Ort::Value& value, HostTensor& tensor) {
  if (value == nullptr || !value.IsTensor()) {
    return false;
  }
  const auto info = value.GetTensorTypeAndShapeInfo();
  tensor.type = info.GetElementType();
  const std::vector<std::int64_t> shape = info.GetShape();
  tensor.rank = shape.size();
  if (tensor.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING || tensor.rank > HostTensor::max_dimensions ||
      value.GetTensorMemoryInfo().GetAllocatorName() != "Cpu") {
    return false;
  }
  std::ranges::copy(shape, tensor.shape.begin());
  tensor.data = value.GetTensorRawData();
  return true;
}

std::string shape_text(const HostTensor& tensor) {
  std::string text;
  for (std::size_t i = 0; i < tensor.rank; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(tensor.shape[i]);
  }
  return "(" + text + (tensor.rank == 1 ? ",)" : ")");
}

Ort::MemoryInfo memory_info(const Device& device) {
  return device.is_cuda() ? Ort::MemoryInfo("Cuda", OrtDeviceAllocator, device.index, OrtMemTypeDefault)
                          : Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
}

Ort::Value new_tensor(ONNXTensorElementDataType type, const std::vector<std::int64_t>& shape) {
  return Ort::Value::CreateTensor(Ort::AllocatorWithDefaultOptions(), shape.data(), shape.size(), type);
}

Ort::Value tensor_over(const void* data, ONNXTensorElementDataType type, const std::vector<std::int64_t>& shape,
                       const Device& device) {
  return Ort::Value::CreateTensor(memory_info(device),
                                  const_cast<void*>(data),  // NOLINT(cppcoreguidelines-pro-type-const-cast)
                                  tensor_bytes(type, shape), shape.data(), shape.size(), type);
}

Device device_of(const Ort::ConstMemoryInfo& memory) {
  if (memory.GetDeviceType() != OrtMemoryInfoDeviceType_GPU || memory.GetMemoryType() != OrtMemTypeDefault) {
    return Device::cpu();
  }
  return Device::cuda(memory.GetDeviceId());
}

Ort::Value value_over(const void* data, ONNXTensorElementDataType type, const std::int64_t* shape, std::size_t rank) {
  // Leaked: values may be made up to the end of the process.
  static const auto& memory = *new Ort::MemoryInfo(memory_info(Device::cpu()));  // NOLINT(*-owning-memory)
  return Ort::Value::CreateTensor(memory,
                                  const_cast<void*>(data),  // NOLINT(cppcoreguidelines-pro-type-const-cast)
                                  tensor_bytes(type, {shape, shape + rank}), shape, rank, type);
}

const Ort::Value* RunInputs::values() const {
  fill_up();
  for (std::size_t i = 0; i < known_.size(); ++i) {
    if (known(i) != nullptr && values_[i] == nullptr) {
      values_[i] = value_over(known_[i]);
    }
  }
  return values_.data();
}

RunInputs zeros(const std::vector<ValueInfo>& inputs) {
  RunInputs values;
  for (const ValueInfo& input : inputs) {
    std::vector<std::int64_t> shape = input.shape;
    std::ranges::replace(shape, std::int64_t{-1}, std::int64_t{1});
    const std::size_t bytes = tensor_bytes(input.element_type, shape);
    Ort::Value value = new_tensor(input.element_type, shape);
    std::memset(value.GetTensorMutableRawData(), 0, bytes);
    values.add(input.name.c_str(), std::move(value));
  }
  return values;
}

std::shared_ptr<Value> Value::over(const void* data, ONNXTensorElementDataType type,
                                   const std::vector<std::int64_t>& shape, const Device& device,
                                   std::shared_ptr<const void> owner, bool writable) {
  OnnxRuntime::get();  // throws where the library is not open yet
  const std::size_t bytes = tensor_bytes(type, shape);
  if (data == nullptr && bytes != 0) {
    throw Error(ErrorKind::invalid_argument, "a tensor of " + std::to_string(bytes) + " bytes cannot be at address 0");
  }
  return checked(making, [&] {
    return std::make_shared<Value>(tensor_over(data, type, shape, device), std::move(owner), writable);
  });
}

std::shared_ptr<Value> Value::allocate(ONNXTensorElementDataType type, const std::vector<std::int64_t>& shape,
                                       const Device& device) {
  OnnxRuntime::get();  // as above
  if (holds_strings(type)) {
    static_cast<void>(tensor_bytes(ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, shape));  // of something to have the shape
    if (device.is_cuda()) {
      throw Error(ErrorKind::not_implemented, "strings are in the CPU's memory alone, not on " + to_string(device));
    }
  } else if (const std::size_t bytes = tensor_bytes(type, shape); device.is_cuda()) {
    const auto memory =
        std::make_shared<const CudaMemory>(CudaStartup::instance(), device.index, bytes, "the value takes");
    return over(to_pointer(memory->address()), type, shape, device, memory);
  }
  return checked(making, [&] { return std::make_shared<Value>(new_tensor(type, shape)); });
}

std::string Value::type() const {
  if (!has_value()) {
    throw Error(ErrorKind::invalid_argument, "this OrtValue is empty, and has no type");
  }
  return checked("asking for a value's type", [&] { return make_value_info("", value_.GetTypeInfo()).type; });
}

const Ort::Value& Value::tensor() const {
  if (!is_tensor()) {
    throw Error(ErrorKind::invalid_type, has_value() ? "this OrtValue is " + type() + " and no tensor"
                                                     : std::string("this OrtValue is empty and no tensor"));
  }
  return value_;
}

std::vector<std::int64_t> Value::shape() const { return tensor().GetTensorTypeAndShapeInfo().GetShape(); }

ONNXTensorElementDataType Value::element_type() const { return tensor().GetTensorTypeAndShapeInfo().GetElementType(); }

std::size_t Value::bytes() const { return tensor_bytes(tensor()); }

Device Value::device() const { return device_of(tensor().GetTensorMemoryInfo()); }

void* Value::data() const {
  if (holds_strings(element_type())) {
    throw Error(ErrorKind::invalid_type, "a tensor of strings has no address");
  }
  // ONNX Runtime's functions differ in constness, not in what they return.
  return const_cast<void*>(value_.GetTensorRawData());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

bool Value::contains(const void* address) const noexcept {
  try {
    if (!is_tensor() || holds_strings(element_type())) {
      return false;
    }
    const auto begin = reinterpret_cast<std::uintptr_t>(data());
    const auto wanted = reinterpret_cast<std::uintptr_t>(address);
    return wanted >= begin && wanted - begin < bytes();
  } catch (const std::exception&) {
    return false;
  }
}

void Value::copy_to_host(void* target) const {
  if (const std::size_t size = bytes(); size != 0) {
    if (device().is_cuda()) {
      ortmulti::copy_to_host(CudaStartup::instance(), device().index, target, data(), size);
    } else {
      std::memmove(target, data(), size);
    }
  }
}

void Value::copy_from(const Value& source) const {
  if (!writable_) {
    throw Error(ErrorKind::invalid_argument, "this OrtValue is over a read-only array");
  }
  const std::size_t size = bytes();
  if (source.bytes() != size) {
    throw Error(ErrorKind::invalid_argument, "a value of " + std::to_string(source.bytes()) +
                                                 " bytes cannot be copied to one of " + std::to_string(size));
  }
  if (!device().is_cuda()) {
    source.copy_to_host(data());
  } else if (size != 0 && source.device().is_cuda()) {
    copy_between_devices(CudaStartup::instance(), device().index, data(), source.device().index, source.data(), size);
  } else if (size != 0) {
    copy_to_device(CudaStartup::instance(), device().index, data(), source.data(), size);
  }
}

std::shared_ptr<Value> Value::copied_to(const Device& device) const {
  auto copy = allocate(element_type(), shape(), device);
  copy->copy_from(*this);
  return copy;
}

std::uint64_t add_shape(std::uint64_t shapes, const Ort::Value& value) {
  if (value != nullptr && value.IsTensor()) {
    for (const std::int64_t size : value.GetTensorTypeAndShapeInfo().GetShape()) {
      shapes = mix(shapes, static_cast<std::uint64_t>(size));
    }
  }
  return mix(shapes, ~std::uint64_t{0});  // so that dimensions do not move from one value to the next
}

}  // namespace ortmulti
