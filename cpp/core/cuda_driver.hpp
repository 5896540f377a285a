#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <string>

namespace ortmulti {

/// The CUDA driver's functions that the core calls, looked up at run time. A plain table, so that tests can put
/// their own functions in.
struct CudaDriver {
  PFN_cuInit_v2000 init = nullptr;
  PFN_cuDriverGetVersion_v2020 driver_get_version = nullptr;
  PFN_cuGetErrorName_v6000 get_error_name = nullptr;
  PFN_cuGetErrorString_v6000 get_error_string = nullptr;
  PFN_cuDeviceGetCount_v2000 device_get_count = nullptr;
  PFN_cuDeviceGet_v2000 device_get = nullptr;
  PFN_cuDeviceGetName_v2000 device_get_name = nullptr;
  PFN_cuDeviceGetUuid_v11040 device_get_uuid = nullptr;
  PFN_cuDeviceGetPCIBusId_v4010 device_get_pci_bus_id = nullptr;
  PFN_cuDeviceTotalMem_v3020 device_total_mem = nullptr;
  PFN_cuDeviceGetAttribute_v2000 device_get_attribute = nullptr;
  PFN_cuDeviceCanAccessPeer_v4000 device_can_access_peer = nullptr;
  PFN_cuDevicePrimaryCtxRetain_v7000 primary_ctx_retain = nullptr;
  PFN_cuCtxSetCurrent_v4000 ctx_set_current = nullptr;
  PFN_cuMemGetInfo_v3020 mem_get_info = nullptr;

  /// "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"
  std::string describe(CUresult result) const;
};

/// The machine's driver; null without one, and then `reason` says what is missing. Loads nothing twice.
const CudaDriver* find_cuda_driver(std::string* reason);

/// Opens `library_name` and looks all functions up; throws Error with ErrorKind::library.
CudaDriver load_cuda_driver(const char* library_name);

}  // namespace ortmulti
