#include "core/pool/gpu_session.hpp"

#include <algorithm>

#include "core/ort/value.hpp"

namespace ortmulti {
namespace {

// Where a release cannot tell which device reads an input: small ones are often shapes and the like, which the CPU
// does.
constexpr std::size_t surely_on_device = 4096;

}  // namespace

DeviceBlocks::DeviceBlocks(CudaStartup& startup, int device) : startup_(startup), device_(device) {
  free_.reserve(kept);
}

std::shared_ptr<const CudaMemory> DeviceBlocks::take(std::size_t bytes) {
  Block block;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(free_, bytes, [](const auto& entry) { return entry.first; });
    if (found != free_.end()) {
      block = std::move(found->second);
      free_.erase(found);
    }
  }
  if (block) {
    wait_for_default_stream(startup_, device_);  // what read it last may have been asked for there, and not be done
  } else {
    const ScopedContext current(startup_, device_);
    block = std::make_unique<const CudaMemory>(startup_, device_, bytes, "an output takes");
  }
  return {block.release(),
          [blocks = shared_from_this(), bytes](const CudaMemory* memory) { blocks->give_back(bytes, Block(memory)); }};
}

void DeviceBlocks::give_back(std::size_t bytes, Block block) {
  Block oldest;  // freed without the lock
  const std::lock_guard lock(mutex_);
  if (free_.size() == kept) {
    oldest = std::move(free_.front().second);
    free_.erase(free_.begin());
  }
  free_.emplace_back(bytes, std::move(block));
}

void DeviceBlocks::free() {
  std::vector<std::pair<std::size_t, Block>> freed;  // without the lock
  freed.reserve(kept);
  const std::lock_guard lock(mutex_);
  freed.swap(free_);
}

GpuSession::GpuSession(std::shared_ptr<Session> session)
    : session_(std::move(session)),
      blocks_(std::make_shared<DeviceBlocks>(CudaStartup::instance(), session_->device().index)) {
  if (const auto placement = session_->placement()) {
    placement_known_ = true;
    for (std::size_t i = 0; i < session_->inputs().size(); ++i) {
      inputs_[session_->inputs()[i].name] = placement->inputs_on_device[i];
    }
    for (std::size_t i = 0; i < session_->outputs().size(); ++i) {
      outputs_[session_->outputs()[i].name] = placement->outputs_on_device[i];
    }
  }
}

bool GpuSession::reads_on_device(std::string_view input, std::size_t bytes) const {
  const auto found = inputs_.find(input);
  return found == inputs_.end() ? !placement_known_ && bytes >= surely_on_device : found->second;
}

bool GpuSession::writes_on_device(std::string_view output) const {
  const auto found = outputs_.find(output);
  return found == outputs_.end() || found->second;
}

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
    tensor.pinned = request.pinned_inputs != nullptr;
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

void sort_by_name(std::vector<RequestTensor>& inputs) {
  std::ranges::sort(inputs, {}, [](const auto& input) { return std::string_view(input.name); });
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

std::uint64_t shapes_of(const std::vector<RequestTensor>& inputs) {
  std::uint64_t shapes = no_shapes;
  for (const RequestTensor& input : inputs) {
    shapes = add_shape(shapes, *input.value);
  }
  return shapes;
}

std::size_t aligned(std::size_t bytes) {
  constexpr std::size_t alignment = 256;  // as CUDA's own allocations have it
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace ortmulti
