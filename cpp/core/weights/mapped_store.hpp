#pragma once

#include <onnxruntime_cxx_api.h>

#include <memory>
#include <vector>

#include "core/base/file.hpp"
#include "core/onnx/weight_list.hpp"
#include "core/ort/weight_store.hpp"

namespace ortmulti {

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
