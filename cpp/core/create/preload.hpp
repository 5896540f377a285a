#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/timeline.hpp"
#include "core/onnx/index.hpp"
#include "core/ort/library.hpp"

namespace ortmulti {

/// What CUDA loads into a device's context at a model's first run, once in a process: the kernels of the CUDA provider
/// and cuBLAS's. They are loaded ahead by using the same libraries for something tiny.
class Preload {
 public:
  /// Of a model's operators and weights.
  explicit Preload(const ModelIndex& index);

  /// For whom it is loaded.
  struct Load {
    std::shared_ptr<Timeline> timeline;    ///< Gets the spans; null: CudaStartup remembers them.
    std::function<bool()> wanted;          ///< Whether it is still to be begun when the context is there.
    std::function<void()> before_freeing;  ///< Freeing waits for all work of the device.
  };

  /// Begins to load in the background what no other call has begun to load on the device, the provider's kernels beside
  /// cuBLAS's. The device's context is created if it is not there. Nothing is left but what CUDA keeps, and no failure
  /// is an error: the timeline says what was loaded and what failed. Without `sessions`, ONNX Runtime creates no
  /// session for it. Sessions that run meanwhile use what is there and load the rest.
  void begin(OnnxRuntime& runtime, int device, bool sessions, const Load& load) const;

 private:
  using Work = std::function<std::shared_ptr<const void>()>;  // returns what is to be freed

  static void run_step(int device, const std::string& what, const Work& work, const Load& load);
  std::shared_ptr<const void> multiply(int device) const;
  std::shared_ptr<const void> run_kernels(OnnxRuntime& runtime, int device) const;

  std::set<std::string> operators_;
  int element_type_;                                   // that of most bytes of the weights, ONNX's number
  std::vector<std::array<std::int64_t, 2>> matrices_;  // the shapes of the largest ones
};

/// As Preload::begin() for a model of this index on these devices; on all without a list.
void begin_preload(OnnxRuntime& runtime, const std::optional<std::vector<int>>& devices, const ModelIndex& index);

/// Waits for what is being loaded on a device.
void wait_for_preloads(int device);

/// Begins nothing more, and waits for all of it. Called before the process ends.
void end_preloads();

}  // namespace ortmulti
