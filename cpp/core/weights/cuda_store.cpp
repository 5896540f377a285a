#include "core/weights/cuda_store.hpp"

#include <utility>

namespace ortmulti {

CudaWeightStore::CudaWeightStore(CudaStartup& startup, int device, std::shared_ptr<const WeightPlan> plan,
                                 Timeline* timeline)
    : device_(Device::cuda(device)), plan_(std::move(plan)) {
  startup.make_current(device, timeline);  // which has spans of its own
  const std::string name = to_string(device_);
  const ScopedSpan span(timeline, "allocate weights", name);
  memory_ = std::make_unique<const CudaMemory>(startup, device, plan_->slab_bytes, "the weights take");
}

void CudaWeightStore::add_to(Ort::SessionOptions& options) const {
  const std::vector<Weight>& weights = plan_->list.weights;
  std::call_once(values_made_, [&] {
    const Ort::MemoryInfo memory("Cuda", OrtDeviceAllocator, device_.index, OrtMemTypeDefault);
    values_.reserve(weights.size());
    for (std::size_t i = 0; i < weights.size(); ++i) {
      // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's addresses are numbers
      values_.push_back(Ort::Value::CreateTensor(memory, reinterpret_cast<void*>(address(i)), weights[i].length,
                                                 weights[i].shape.data(), weights[i].shape.size(),
                                                 static_cast<ONNXTensorElementDataType>(weights[i].data_type)));
    }
  });
  for (std::size_t i = 0; i < weights.size(); ++i) {
    options.AddInitializer(weights[i].name.c_str(), values_[i]);
  }
}

}  // namespace ortmulti
