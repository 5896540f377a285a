#pragma once

#include <onnxruntime_cxx_api.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/base/file.hpp"
#include "core/cuda/memory.hpp"
#include "core/cuda/startup.hpp"
#include "core/onnx/weight_list.hpp"
#include "core/ort/weight_use.hpp"
#include "core/weights/plan.hpp"

namespace ortmulti {

/// The weights of a plan in one allocation of a GPU's memory.
class CudaWeightStore : public WeightStore {
 public:
  /// Allocates, in the context of the device, which is made current. Throws Error with ErrorKind::out_of_memory, which
  /// says how much there is, before anything is allocated where it cannot suffice.
  CudaWeightStore(CudaStartup& startup, int device, std::shared_ptr<const WeightPlan> plan, Timeline* timeline);

  const Device& device() const noexcept override { return device_; }
  void add_to(Ort::SessionOptions& options) const override;
  std::size_t count() const noexcept override { return plan_->list.weights.size(); }

  const WeightPlan& plan() const noexcept { return *plan_; }
  CUcontext context() const noexcept { return memory_->context(); }
  CUdeviceptr slab() const noexcept { return memory_->address(); }
  CUdeviceptr address(std::size_t weight) const { return slab() + plan_->slab_offsets[weight]; }

 private:
  Device device_;
  std::shared_ptr<const WeightPlan> plan_;
  std::unique_ptr<const CudaMemory> memory_;
  mutable std::vector<Ort::Value> values_;  // made at the first add_to(): they need ONNX Runtime, memory does not
  mutable std::once_flag values_made_;
};

/// The weights for sessions on the CPU, used where their files are mapped: every process shares the page cache's copy.
class MappedWeightStore : public WeightStore {
 public:
  /// Throws Error with ErrorKind::weights where a file cannot be opened or is not the one that was listed.
  explicit MappedWeightStore(WeightList list);

  const Device& device() const noexcept override { return device_; }
  void add_to(Ort::SessionOptions& options) const override;
  std::size_t count() const noexcept override { return list_.weights.size(); }

 private:
  Device device_ = Device::cpu();
  WeightList list_;
  std::vector<std::unique_ptr<MappedFile>> files_;
  std::vector<Ort::Value> values_;
};

}  // namespace ortmulti
