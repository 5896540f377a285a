#pragma once

#include <cstdint>
#include <optional>

#include "core/cuda/startup.hpp"

namespace ortmulti {

/// NVIDIA's management library, which comes with the driver: it tells the processes on a GPU apart.
class Nvml : NonCopyable {
 public:
  /// Opens the library; without it nothing is known.
  explicit Nvml(const char* library_name);
  /// The machine's, opened at the first call.
  static const Nvml& instance();

  /// Bytes of the GPU's memory that this process has, with its context and the kernels there. None where the library
  /// does not say, as in some containers.
  std::optional<std::uint64_t> memory_of_process(const CudaDeviceInfo& device) const;

 private:
  void* find(const CudaDeviceInfo& device) const;

  void* library_;  // stays open; null: there is none that works
};

}  // namespace ortmulti
