#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/cuda_driver.hpp"

namespace ortmulti::tests {

/// A CUDA driver in host memory. Its functions are plain ones, as the real driver's, so its state is the process's.
struct FakeCuda {
  int devices = 2;
  std::map<std::string, CUresult> failing;  ///< Function ("cuInit") and what it returns.
  bool peers = true;

  std::atomic<int> init_calls{0};
  std::atomic<bool> overlapped{false};  ///< Whether two calls that create something ran at the same time.
  std::mutex mutex;
  std::vector<int> contexts;  ///< Devices in the order in which their contexts were created.

  static FakeCuda& state();
  /// Forgets everything.
  static void reset();
  static CudaDriver table();

  static constexpr std::size_t total_memory(int device) { return (static_cast<std::size_t>(device) + 1) << 30U; }
  static constexpr std::size_t free_memory(int device) { return total_memory(device) / 2; }
  /// The device whose context is current in the calling thread; -1 for none.
  static int current();
};

}  // namespace ortmulti::tests
