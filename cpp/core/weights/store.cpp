#include "core/weights/store.hpp"

#include <utility>

#include "core/base/error.hpp"

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

MappedWeightStore::MappedWeightStore(WeightList list) : list_(std::move(list)) {
  for (const FileIdentity& file : list_.files) {
    files_.push_back(std::make_unique<MappedFile>(*open_listed(file)));
  }
  const auto memory = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
  for (const Weight& weight : list_.weights) {
    const MappedFile& file = *files_.at(weight.file);
    if (weight.offset > file.size() || weight.length > file.size() - weight.offset) {
      throw Error(ErrorKind::weights,
                  "'" + list_.files[weight.file].path + "' ends before the weight '" + weight.name + "' does");
    }
    // ONNX Runtime's type has no const; it writes no initializer.
    auto* data =
        const_cast<unsigned char*>(file.data() + weight.offset);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
    values_.push_back(Ort::Value::CreateTensor(memory, data, weight.length, weight.shape.data(), weight.shape.size(),
                                               static_cast<ONNXTensorElementDataType>(weight.data_type)));
  }
}

void MappedWeightStore::add_to(Ort::SessionOptions& options) const {
  for (std::size_t i = 0; i < values_.size(); ++i) {
    options.AddInitializer(list_.weights[i].name.c_str(), values_[i]);
  }
}

}  // namespace ortmulti
