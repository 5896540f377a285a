// A library in the place of the NVIDIA driver's: it exports cuGetProcAddress_v2 alone, and finds every function but the
// one that ORTMULTI_FAKE_DRIVER_LACKS names.
#include <cuda.h>

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
