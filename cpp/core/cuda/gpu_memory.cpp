#include "core/cuda/gpu_memory.hpp"

#include <cstddef>
#include <numeric>

#include "core/cuda/nvml.hpp"

namespace ortmulti {

UncountedMemory GpuMemory::uncounted() const noexcept {
  auto bytes = static_cast<std::int64_t>(of_process.value_or(used));
  for (const MemoryUse use : {MemoryUse::weights, MemoryUse::arenas, MemoryUse::graphs}) {
    bytes -= static_cast<std::int64_t>(uses.at(static_cast<std::size_t>(use)));
  }
  return {.bytes = bytes, .of_process = of_process.has_value()};
}

GpuMemory gpu_memory(CudaStartup& startup, int device) {
  const CudaDeviceInfo info = startup.describe(device);
  GpuMemory memory;
  MemoryUses uses = device_memory::uses(Device::cuda(device));
  int tries_left = 4;  // models may wake and fall asleep meanwhile
  do {
    memory.uses = uses;
    const CudaStartup::Memory driver = startup.memory(device);
    memory.of_process = Nvml::instance().memory_of_process(info);
    memory.used = driver.total - driver.free;
    memory.total = driver.total;
    uses = device_memory::uses(Device::cuda(device));
  } while (memory.uses != uses && --tries_left > 0);
  if (memory.of_process < std::accumulate(memory.uses.begin(), memory.uses.end(), std::uint64_t{0})) {
    memory.of_process.reset();  // of another process, whose number this one has in its container
  }
  return memory;
}

}  // namespace ortmulti
