#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <string>

namespace ortmulti {

/// The CUDA driver's functions that the core calls: the name here, the driver's, and the version of its parameters.
#define ORTMULTI_CUDA_FUNCTIONS(each)                                    \
  each(init, cuInit, 2000);                                              \
  each(driver_get_version, cuDriverGetVersion, 2020);                    \
  each(get_error_name, cuGetErrorName, 6000);                            \
  each(get_error_string, cuGetErrorString, 6000);                        \
  each(device_get_count, cuDeviceGetCount, 2000);                        \
  each(device_get, cuDeviceGet, 2000);                                   \
  each(device_get_name, cuDeviceGetName, 2000);                          \
  each(device_get_uuid, cuDeviceGetUuid, 11040);                         \
  each(device_get_pci_bus_id, cuDeviceGetPCIBusId, 4010);                \
  each(device_total_mem, cuDeviceTotalMem, 3020);                        \
  each(device_get_attribute, cuDeviceGetAttribute, 2000);                \
  each(device_can_access_peer, cuDeviceCanAccessPeer, 4000);             \
  each(primary_ctx_retain, cuDevicePrimaryCtxRetain, 7000);              \
  each(ctx_set_current, cuCtxSetCurrent, 4000);                          \
  each(ctx_get_current, cuCtxGetCurrent, 4000);                          \
  each(ctx_synchronize, cuCtxSynchronize, 2000);                         \
  each(ctx_enable_peer_access, cuCtxEnablePeerAccess, 4000);             \
  each(mem_get_info, cuMemGetInfo, 3020);                                \
  each(mem_alloc, cuMemAlloc, 3020);                                     \
  each(mem_free, cuMemFree, 3020);                                       \
  each(mem_host_register, cuMemHostRegister, 6050);                      \
  each(mem_host_unregister, cuMemHostUnregister, 4000);                  \
  each(memcpy_htod_async, cuMemcpyHtoDAsync, 3020);                      \
  each(memcpy_dtoh_async, cuMemcpyDtoHAsync, 3020);                      \
  each(memcpy_peer_async, cuMemcpyPeerAsync, 4000);                      \
  each(stream_create, cuStreamCreate, 2000);                             \
  each(stream_destroy, cuStreamDestroy, 4000);                           \
  each(stream_synchronize, cuStreamSynchronize, 2000);                   \
  each(event_create, cuEventCreate, 2000);                               \
  each(event_record, cuEventRecord, 2000);                               \
  each(event_synchronize, cuEventSynchronize, 2000);                     \
  each(event_destroy, cuEventDestroy, 4000);                             \
  each(stream_wait_event, cuStreamWaitEvent, 3020);                      \
  each(thread_capture_mode, cuThreadExchangeStreamCaptureMode, 10010);   \
  each(stream_begin_capture, cuStreamBeginCapture, 10010);               \
  each(stream_end_capture, cuStreamEndCapture, 10000);                   \
  each(graph_get_nodes, cuGraphGetNodes, 10000);                         \
  each(graph_node_get_type, cuGraphNodeGetType, 10000);                  \
  each(graph_memcpy_node_get_params, cuGraphMemcpyNodeGetParams, 10000); \
  each(graph_instantiate, cuGraphInstantiateWithFlags, 11040);           \
  each(graph_destroy, cuGraphDestroy, 10000);                            \
  each(graph_launch, cuGraphLaunch, 10000);                              \
  each(graph_exec_destroy, cuGraphExecDestroy, 10000);                   \
  each(device_graph_mem_trim, cuDeviceGraphMemTrim, 11040);              \
  each(pointer_get_attribute, cuPointerGetAttribute, 4000);

/// All or none of these: memory whose address stays while its pages come and go, and that other processes may have.
#define ORTMULTI_CUDA_MAPPING_FUNCTIONS(each)                                 \
  each(mem_get_allocation_granularity, cuMemGetAllocationGranularity, 10020); \
  each(mem_address_reserve, cuMemAddressReserve, 10020);                      \
  each(mem_address_free, cuMemAddressFree, 10020);                            \
  each(mem_create, cuMemCreate, 10020);                                       \
  each(mem_release, cuMemRelease, 10020);                                     \
  each(mem_map, cuMemMap, 10020);                                             \
  each(mem_unmap, cuMemUnmap, 10020);                                         \
  each(mem_set_access, cuMemSetAccess, 10020);                                \
  each(mem_export_to_shareable_handle, cuMemExportToShareableHandle, 10020);  \
  each(mem_import_from_shareable_handle, cuMemImportFromShareableHandle, 10020);

/// These functions of the driver, looked up at run time. A plain table, so that tests can put their own functions in.
struct CudaDriver {
#define ORTMULTI_MEMBER(member, function, version) PFN_##function##_v##version member = nullptr
  ORTMULTI_CUDA_FUNCTIONS(ORTMULTI_MEMBER)
  ORTMULTI_CUDA_MAPPING_FUNCTIONS(ORTMULTI_MEMBER)
#undef ORTMULTI_MEMBER

  /// "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"
  std::string describe(CUresult result) const;
};

/// The machine's driver; null without one, and then `reason` says what is missing. Loads nothing twice.
const CudaDriver* find_cuda_driver(std::string* reason);

/// Opens `library_name` and looks all functions up; throws Error with ErrorKind::library.
CudaDriver load_cuda_driver(const char* library_name);

}  // namespace ortmulti
