// A library in the place of the NVIDIA driver's: of that it exports cuGetProcAddress_v2 alone, and finds every function
// but the one that ORTMULTI_FAKE_DRIVER_LACKS names. And in the place of NVML's, with GPUs that have names.
#include <cuda.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace {

CUresult not_to_be_called() { return CUDA_ERROR_NOT_SUPPORTED; }

}  // namespace

// Under the exported name, which cuda.h has a macro for.
extern "C" __attribute__((visibility("default"))) CUresult
find_function(const char* symbol, void** function, int version, cuuint64_t flags,
              CUdriverProcAddressQueryResult* found) __asm__("cuGetProcAddress_v2");

CUresult find_function(const char* symbol, void** function, int version, cuuint64_t /*flags*/,
                       CUdriverProcAddressQueryResult* found) {
  const char* lacks = std::getenv("ORTMULTI_FAKE_DRIVER_LACKS");
  if (version != 12000 || (lacks != nullptr && std::strcmp(lacks, symbol) == 0)) {
    // As the driver does it: success, and a null pointer.
    *function = nullptr;
    *found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
  }
  *function = reinterpret_cast<void*>(&not_to_be_called);
  *found = CU_GET_PROC_ADDRESS_SUCCESS;
  return CUDA_SUCCESS;
}

namespace {

struct Process {
  unsigned pid;
  unsigned long long memory;  // NOLINT(google-runtime-int): as in nvml.h
  unsigned gpu_instance;
  unsigned compute_instance;
};

constexpr int success = 0;
constexpr int not_found = 6;
constexpr int insufficient_size = 7;

int find_gpu(const char* name, const char* const* known, std::size_t count, void** device) {
  for (std::size_t i = 0; i < count; ++i) {
    if (std::strcmp(known[i], name) == 0) {
      *device = const_cast<char*>(known[i]);  // NOLINT(cppcoreguidelines-pro-type-const-cast): a handle is a void*
      return success;
    }
  }
  return not_found;
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): NVML's names
extern "C" {

__attribute__((visibility("default"))) int nvmlInit_v2() { return success; }

__attribute__((visibility("default"))) int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  static const char* const known[] = {"GPU-few", "GPU-many", "GPU-silent", "GPU-others", "MIG-instance"};
  return find_gpu(uuid, known, 5, device);
}

__attribute__((visibility("default"))) int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** device) {
  static const char* const known[] = {"0000:18:00.0"};
  return find_gpu(address, known, 1, device);
}

__attribute__((visibility("default"))) int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count,
                                                                                   Process* processes) {
  const auto* const name = static_cast<const char*>(device);
  const unsigned all = std::strcmp(name, "GPU-many") == 0 ? 100 : 2;
  const unsigned room = *count;
  *count = all;
  if (room < all) {
    return insufficient_size;
  }
  for (unsigned i = 0; i < all; ++i) {
    processes[i] = {0, 1'000'000, 0, 0};  // no process is 0
  }
  if (std::strcmp(name, "GPU-others") != 0) {
    const bool silent = std::strcmp(name, "GPU-silent") == 0;
    processes[all - 1] = {static_cast<unsigned>(getpid()), silent ? ~0ULL : 7'000'000, 0, 0};
  }
  return success;
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
