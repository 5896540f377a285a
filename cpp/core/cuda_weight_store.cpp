#include "core/cuda_weight_store.hpp"

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "core/process_fork.hpp"

namespace ortmulti {

CudaWeightStore::CudaWeightStore(CudaStartup& startup, int device, std::shared_ptr<const WeightPlan> plan,
                                 Timeline* timeline)
    : startup_(startup),
      device_(Device::cuda(device)),
      plan_(std::move(plan)),
      generation_(fork_generation()),
      context_(startup.make_current(device, timeline)) {
  const std::string name = to_string(device_);
  const ScopedSpan span(timeline, "allocate weights", name);
  const CudaDriver& driver = startup_.driver();
  std::size_t free = 0;
  std::size_t total = 0;
  startup_.check(driver.mem_get_info(&free, &total), "asking for the free memory of " + name);
  const auto out_of_memory = [&](const std::string& detail) {
    return Error(ErrorKind::out_of_memory, "the weights take " + megabytes(plan_->slab_bytes) + " on " + name +
                                               ", which has " + megabytes(free) + " free of " + megabytes(total) +
                                               detail);
  };
  if (plan_->slab_bytes > free) {
    throw out_of_memory("");
  }
  // CUDA refuses to allocate nothing.
  const CUresult result = driver.mem_alloc(&slab_, std::max<std::size_t>(plan_->slab_bytes, WeightPlan::alignment));
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    throw out_of_memory(": " + driver.describe(result));
  }
  startup_.check(result, "allocating the weights on " + name);
}

CudaWeightStore::~CudaWeightStore() {
  values_.clear();
  if (slab_ == 0 || generation_ != fork_generation()) {
    return;  // it is the parent's
  }
  const CudaDriver& driver = startup_.driver();
  CUcontext before = nullptr;
  static_cast<void>(driver.ctx_get_current(&before));
  // Fails where the driver has shut down, which freed it.
  if (driver.ctx_set_current(context_) == CUDA_SUCCESS) {
    static_cast<void>(driver.mem_free(slab_));
    static_cast<void>(driver.ctx_set_current(before));
  }
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
