#include "core/pool/request_tensors.hpp"

#include "core/ort/value.hpp"

namespace ortmulti {
std::optional<std::vector<RequestTensor>> tensors_of(const Request& request, const GpuSession& session) {
  std::vector<RequestTensor> tensors;
  tensors.reserve(request.inputs.size());
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    const Ort::Value& value = request.inputs.values()[i];
    if (value == nullptr || !value.HasValue() || !value.IsTensor()) {
      return std::nullopt;
    }
    const auto info = value.GetTensorTypeAndShapeInfo();
    RequestTensor tensor;
    tensor.type = info.GetElementType();
    if (tensor.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
      return std::nullopt;
    }
    tensor.name = request.inputs.names()[i];
    tensor.shape = info.GetShape();
    tensor.bytes = tensor_bytes(tensor.type, tensor.shape);
    tensor.data = value.GetTensorRawData();
    tensor.device = device_of(value.GetTensorMemoryInfo());
    tensor.value = &value;
    tensor.to_copy = tensor.device != session.session()->device() && tensor.bytes != 0 &&
                     session.reads_on_device(tensor.name, tensor.bytes);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::optional<Device> device_of_inputs(const Request& request) {
  std::optional<Device> found;
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    const Ort::Value& value = request.inputs.values()[i];
    if (value == nullptr || !value.HasValue() || !value.IsTensor()) {
      continue;
    }
    const Device device = device_of(value.GetTensorMemoryInfo());
    if (device.is_cuda() && found && *found != device) {
      return std::nullopt;
    }
    if (device.is_cuda()) {
      found = device;
    }
  }
  return found;
}

std::string shapes_key(const std::vector<RequestTensor>& inputs) {
  std::string key;
  for (const RequestTensor& input : inputs) {
    key += input.name;
    key += '\0';
    key += std::to_string(static_cast<int>(input.type));
    for (const std::int64_t size : input.shape) {
      key += ',' + std::to_string(size);
    }
    key += ';';
  }
  return key;
}

std::size_t aligned(std::size_t bytes) {
  constexpr std::size_t alignment = 256;  // as CUDA's own allocations have it
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace ortmulti
