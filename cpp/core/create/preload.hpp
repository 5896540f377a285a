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

/// Loads ahead what CUDA loads into a device's context at a model's first run, once in a process: kernels of the CUDA
/// provider and of cuBLAS. It uses the same libraries for something tiny.
class Preload {
 public:
  /// Preloads for the model's operators and weights.
  explicit Preload(const ModelIndex& index);

  /// Connects a preload to the load that it is for.
  struct Load {
    std::shared_ptr<Timeline> timeline;    ///< Gets the spans; null: CudaStartup remembers them.
    std::function<bool()> wanted;          ///< Whether it shall still begin once the context exists.
    std::function<void()> before_freeing;  ///< Called before memory is freed, which waits for all work of the device.
  };

  /// Begins to load in the background what no other call has begun to load on the device, the provider's kernels beside
  /// cuBLAS's. Creates the device's context if needed. Only what CUDA keeps stays. A failure is no error: the timeline
  /// says what was loaded and what failed. Without `sessions`, no ONNX Runtime session is created for it. Sessions that
  /// run meanwhile use what is there and load the rest.
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

/// Calls Preload::begin() for a model of this index on these devices, or on all if there is no list.
void begin_preload(OnnxRuntime& runtime, const std::optional<std::vector<int>>& devices, const ModelIndex& index);

/// Waits for preloads on a device.
void wait_for_preloads(int device);
/// Waits for all of them.
void wait_for_preloads();

/// Ends preloading, and waits for preloads under way. Called before the process ends.
void end_preloads();

}  // namespace ortmulti
