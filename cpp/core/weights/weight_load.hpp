#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/weights/loader.hpp"

namespace ortmulti {

/// A load of weights to several GPUs, with a thread for each of them.
class WeightLoad {
 public:
  /// Starts the threads. Throws Error for no device, for one that is named twice, and where a thread cannot start.
  WeightLoad(CudaStartup& startup, const SharedWeights& weights, std::vector<int> devices);
  /// Gives up: waits until the threads have ended, at their next chunk.
  ~WeightLoad();
  WeightLoad(const WeightLoad&) = delete;
  WeightLoad& operator=(const WeightLoad&) = delete;

  /// Waits at most `timeout`; whether all threads are done.
  bool wait(std::chrono::milliseconds timeout);

  /// Waits, and returns the store of each device. Throws the first error of any device.
  std::vector<std::shared_ptr<const CudaWeightStore>> take();

 private:
  void bring_up(std::size_t index) noexcept;
  void stop();

  WeightLoader loader_;
  std::mutex mutex_;
  std::condition_variable done_;
  std::size_t finished_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace ortmulti
