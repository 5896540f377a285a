#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/timeline.hpp"
#include "core/onnx/index.hpp"
#include "core/ort/library.hpp"

namespace ortmulti {

/// What CUDA loads into a device's context at a model's first run, once in a process: the kernels of the CUDA provider,
/// cuBLAS's and cuDNN's. It is loaded ahead by using the same libraries for something tiny.
class Preload {
 public:
  /// Of a model's operators and weights.
  explicit Preload(const ModelIndex& index);

  /// Loads what no other call has loaded on the device, one after the other, until `stop` is set. The device's context
  /// is created if it is not there. Nothing is left but what CUDA keeps, and no failure is an error: the timeline,
  /// which may be null, says what was loaded and what failed. Without `sessions`, ONNX Runtime creates no session for
  /// it. Freeing waits for all work of the device, so that `before_freeing` is called first.
  void load(OnnxRuntime& runtime, int device, bool sessions, Timeline* timeline, const std::atomic<bool>& stop,
            const std::function<void()>& before_freeing = {}) const;

  /// Whether weights are loaded to the device before.
  static bool after_weights();

 private:
  // Each returns what is to be freed.
  std::shared_ptr<const void> multiply(int device) const;
  std::shared_ptr<const void> run_kernels(OnnxRuntime& runtime, int device) const;
  std::shared_ptr<const void> run_products(OnnxRuntime& runtime, int device) const;
  std::shared_ptr<const void> run_convolution(OnnxRuntime& runtime, int device) const;

  bool has(std::initializer_list<const char*> names) const;

  std::set<std::string> operators_;
  int element_type_;                                   // that of most bytes of the weights, ONNX's number
  std::vector<std::array<std::int64_t, 2>> matrices_;  // the shapes of the largest ones
};

/// Begins to load, in the background, what a model of this index needs on these devices; on all without a list.
void begin_preload(OnnxRuntime& runtime, const std::optional<std::vector<int>>& devices, const ModelIndex& index);

/// Ends what begin_preload() has begun. Called before the process ends.
void end_preloads();

}  // namespace ortmulti
