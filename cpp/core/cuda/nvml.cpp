#include "core/cuda/nvml.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <limits>
#include <string>
#include <vector>

namespace ortmulti {
namespace {

// Declarations of nvml.h, which the driver does not bring along.
constexpr int success = 0;
constexpr int insufficient_size = 7;
struct ProcessInfo {
  unsigned pid;
  unsigned long long memory;  // NOLINT(google-runtime-int): its type there
  unsigned gpu_instance;
  unsigned compute_instance;
};
using Init = int (*)();
using Find = int (*)(const char* name, void** device);
using Processes = int (*)(void* device, unsigned* count, ProcessInfo* infos);

template <typename Function>
Function symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

Nvml::Nvml(const char* library_name) : library_(dlopen(library_name, RTLD_NOW | RTLD_LOCAL)) {
  const auto init = library_ == nullptr ? nullptr : symbol<Init>(library_, "nvmlInit_v2");
  if (init == nullptr || init() != success) {
    library_ = nullptr;
  }
}

const Nvml& Nvml::instance() {
  // Not a process_singleton: a forked child has no use for it, and opening it takes locks.
  static const Nvml* const machine = new Nvml("libnvidia-ml.so.1");  // NOLINT(cppcoreguidelines-owning-memory)
  return *machine;
}

void* Nvml::find(const CudaDeviceInfo& device) const {
  const auto by_uuid = symbol<Find>(library_, "nvmlDeviceGetHandleByUUID");
  const auto by_address = symbol<Find>(library_, "nvmlDeviceGetHandleByPciBusId_v2");
  // CUDA writes "GPU-" before the identity of an instance of a partitioned GPU, too.
  const std::string identity = device.uuid.substr(device.uuid.find('-') + 1);
  void* found = nullptr;
  for (const char* kind : {"MIG-", "GPU-"}) {
    if (by_uuid != nullptr && by_uuid((kind + identity).c_str(), &found) == success) {
      return found;
    }
  }
  return by_address != nullptr && by_address(device.pci_bus_id.c_str(), &found) == success ? found : nullptr;
}

std::optional<std::uint64_t> Nvml::memory_of_process(const CudaDeviceInfo& device) const {
  if (library_ == nullptr) {
    return std::nullopt;
  }
  const auto list = symbol<Processes>(library_, "nvmlDeviceGetComputeRunningProcesses_v3");
  void* const found = find(device);
  if (list == nullptr || found == nullptr) {
    return std::nullopt;
  }
  std::vector<ProcessInfo> processes(16);
  auto count = static_cast<unsigned>(processes.size());
  int result = list(found, &count, processes.data());
  while (result == insufficient_size) {  // others begin meanwhile
    processes.resize(2 * static_cast<std::size_t>(count) + processes.size());
    count = static_cast<unsigned>(processes.size());
    result = list(found, &count, processes.data());
  }
  const auto pid = static_cast<unsigned>(getpid());
  for (unsigned i = 0; result == success && i < count; ++i) {
    if (processes[i].pid == pid && processes[i].memory != std::numeric_limits<std::uint64_t>::max()) {
      return processes[i].memory;
    }
  }
  return std::nullopt;
}

}  // namespace ortmulti
