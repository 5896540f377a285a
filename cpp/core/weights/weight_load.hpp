#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <vector>

#include "core/weights/loader.hpp"

namespace ortmulti {

/// Loads weights to several GPUs, with a thread for each of them.
class WeightLoad : NonCopyable {
 public:
  /// Starts the threads. Throws Error without a device, if one is named twice, and if a thread cannot start.
  WeightLoad(CudaStartup& startup, const SharedWeights& weights, std::vector<int> devices);
  /// Gives up: waits until the threads have ended, at their next chunk.
  ~WeightLoad() { loader_.stop(); }

  /// Waits at most `timeout`; whether all threads are done.
  bool wait(std::chrono::milliseconds timeout) const;

  /// Waits, and returns the store of each device. Throws the first error of any device.
  std::vector<std::shared_ptr<const CudaWeightStore>> take();

 private:
  WeightLoader loader_;
  std::vector<std::future<void>> threads_;  // freed, they wait
};

}  // namespace ortmulti
