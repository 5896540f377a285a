#include "core/pool/captured_graphs.hpp"

#include <algorithm>
#include <utility>

#include "core/cuda/capture_lock.hpp"
#include "core/ort/value.hpp"

namespace ortmulti {

CapturedGraph* CapturedGraphs::find(const std::string& key) {
  const auto found =
      std::find_if(graphs_.begin(), graphs_.end(), [&key](const auto& graph) { return graph.key == key; });
  if (found == graphs_.end()) {
    return nullptr;
  }
  graphs_.splice(graphs_.begin(), graphs_, found);
  return &*found;
}

CapturedGraph CapturedGraphs::make(const std::string& key, const std::vector<RequestTensor>& inputs,
                                   const GraphShapes::Outputs& outputs, const Session::Lock& open) {
  std::size_t bytes = 0;
  for (const RequestTensor& input : inputs) {
    bytes += aligned(input.bytes);
  }
  for (const GraphShapes::Output& output : outputs) {
    bytes += aligned(tensor_bytes(output.type, output.shape));
  }
  Session& session = *session_->session();
  CapturedGraph graph;
  graph.key = key;
  graph.memory = std::make_unique<const CudaMemory>(CudaStartup::instance(), session.device().index, bytes,
                                                    "inputs and outputs of a CUDA graph take");
  graph.binding = session.make_binding(open);
  const Ort::MemoryInfo memory = memory_info(session.device());
  CUdeviceptr next = graph.memory->address();
  const auto place = [&](ONNXTensorElementDataType type, const std::vector<std::int64_t>& shape) {
    auto* const at = reinterpret_cast<void*>(next);  // NOLINT(performance-no-int-to-ptr): the driver's are numbers
    const std::size_t size = tensor_bytes(type, shape);
    next += aligned(size);
    return Ort::Value::CreateTensor(memory, at, size, shape.data(), shape.size(), type);
  };
  for (const RequestTensor& input : inputs) {
    const Ort::Value value = place(input.type, input.shape);
    graph.inputs.push_back(
        const_cast<void*>(value.GetTensorRawData()));  // NOLINT(cppcoreguidelines-pro-type-const-cast)
    graph.binding.BindInput(input.name, value);
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    graph.outputs.push_back(place(outputs[i].type, outputs[i].shape));
    graph.binding.BindOutput(session.outputs()[i].name.c_str(), graph.outputs.back());
  }
  return graph;
}

CapturedGraph* CapturedGraphs::keep(CapturedGraph graph) {
  if (graphs_.size() == most_) {
    const CaptureLock::Shared use;
    graphs_.pop_back();
  }
  graphs_.push_front(std::move(graph));
  return &graphs_.front();
}

}  // namespace ortmulti
