#pragma once

#include <cstdint>
#include <optional>

#include "core/cuda/startup.hpp"
#include "core/memory/device_memory.hpp"

namespace ortmulti {

/// A GPU's memory: who has how many bytes of it.
struct GpuMemory {
  MemoryUses uses{};  ///< Of this process, as it counts them itself.
  /// What this process has, with its context, kernels and handles. None if NVML does not say, or says less than is
  /// counted.
  std::optional<std::uint64_t> of_process;
  std::uint64_t used = 0;  ///< By all processes.
  std::uint64_t total = 0;

  UncountedMemory uncounted() const noexcept;
};

/// Throws Error where the device cannot say.
GpuMemory gpu_memory(CudaStartup& startup, int device);

}  // namespace ortmulti
