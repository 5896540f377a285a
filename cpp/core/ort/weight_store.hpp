#pragma once

#include <onnxruntime_cxx_api.h>

#include <cstddef>

#include "core/base/device.hpp"

namespace ortmulti {

/// One copy of a model's weights on one device, used in place by the sessions over it.
class WeightStore {
 public:
  WeightStore() = default;
  virtual ~WeightStore() = default;
  WeightStore(const WeightStore&) = delete;
  WeightStore& operator=(const WeightStore&) = delete;

  virtual const Device& device() const noexcept = 0;
  /// Gives ONNX Runtime every weight, under its name. Values stay valid as long as the store.
  virtual void add_to(Ort::SessionOptions& options) const = 0;
  virtual std::size_t count() const noexcept = 0;
};

}  // namespace ortmulti
