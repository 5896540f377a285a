#include "core/cuda/gpu_memory.hpp"

#include <algorithm>
#include <numeric>

#include "core/cuda/nvml.hpp"

namespace ortmulti {

std::uint64_t GpuMemory::beside() const noexcept {
  const std::uint64_t counted = std::accumulate(uses.begin(), uses.end(), std::uint64_t{0});
  const std::uint64_t all = of_process.value_or(used);
  return all - std::min(all, counted);
}

GpuMemory gpu_memory(CudaStartup& startup, int device) {
  GpuMemory memory;
  const CudaStartup::Memory driver = startup.memory(device);
  memory.uses = device_memory::uses(Device::cuda(device));
  memory.of_process = Nvml::instance().memory_of_process(startup.describe(device));
  memory.used = driver.total - driver.free;
  memory.total = driver.total;
  return memory;
}

}  // namespace ortmulti
