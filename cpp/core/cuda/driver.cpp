#include "core/cuda/driver.hpp"

#include <dlfcn.h>

#include <mutex>
#include <optional>

#include "core/base/error.hpp"

namespace ortmulti {
namespace {

// The version whose meaning of each entry point the code was written for. Drivers of CUDA 12.0 and newer have it.
constexpr int entry_point_version = 12000;

class EntryPoints {
 public:
  // The _v2 suffix is the ABI that reports whether a symbol was found; only drivers from 12.0 on export it.
  explicit EntryPoints(void* library)
      : get_(reinterpret_cast<PFN_cuGetProcAddress_v12000>(dlsym(library, "cuGetProcAddress_v2"))) {
    if (get_ == nullptr) {
      throw Error(ErrorKind::library,
                  "the NVIDIA driver is older than CUDA 12.0 (libcuda.so.1 does not export cuGetProcAddress_v2); "
                  "update the driver");
    }
  }

  template <typename Function>
  bool find(Function& function, const char* name) const {
    void* address = nullptr;
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    const CUresult result = get_(name, &address, entry_point_version, CU_GET_PROC_ADDRESS_DEFAULT, &found);
    function = result == CUDA_SUCCESS ? reinterpret_cast<Function>(address) : nullptr;
    return function != nullptr;
  }

  template <typename Function>
  void look_up(Function& function, const char* name) const {
    if (!find(function, name)) {
      throw Error(ErrorKind::library, std::string("the NVIDIA driver has no function ") + name + " of CUDA 12.0");
    }
  }

 private:
  PFN_cuGetProcAddress_v12000 get_;
};

}  // namespace

std::string CudaDriver::describe(CUresult result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (get_error_name == nullptr || get_error_name(result, &name) != CUDA_SUCCESS || name == nullptr) {
    name = "unknown CUDA error";
  }
  if (get_error_string == nullptr || get_error_string(result, &text) != CUDA_SUCCESS || text == nullptr) {
    text = "";
  }
  return std::string(name) + " (" + std::to_string(static_cast<int>(result)) + ")" + (*text == '\0' ? "" : ": ") + text;
}

CudaDriver load_cuda_driver(const char* library_name) {
  void* library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    throw Error(ErrorKind::library, std::string("no NVIDIA driver: ") + (reason == nullptr ? library_name : reason));
  }
  const EntryPoints entry_points(library);
  CudaDriver driver;
  entry_points.look_up(driver.init, "cuInit");
  entry_points.look_up(driver.driver_get_version, "cuDriverGetVersion");
  entry_points.look_up(driver.get_error_name, "cuGetErrorName");
  entry_points.look_up(driver.get_error_string, "cuGetErrorString");
  entry_points.look_up(driver.device_get_count, "cuDeviceGetCount");
  entry_points.look_up(driver.device_get, "cuDeviceGet");
  entry_points.look_up(driver.device_get_name, "cuDeviceGetName");
  entry_points.look_up(driver.device_get_uuid, "cuDeviceGetUuid");
  entry_points.look_up(driver.device_get_pci_bus_id, "cuDeviceGetPCIBusId");
  entry_points.look_up(driver.device_total_mem, "cuDeviceTotalMem");
  entry_points.look_up(driver.device_get_attribute, "cuDeviceGetAttribute");
  entry_points.look_up(driver.device_can_access_peer, "cuDeviceCanAccessPeer");
  entry_points.look_up(driver.primary_ctx_retain, "cuDevicePrimaryCtxRetain");
  entry_points.look_up(driver.ctx_set_current, "cuCtxSetCurrent");
  entry_points.look_up(driver.ctx_get_current, "cuCtxGetCurrent");
  entry_points.look_up(driver.ctx_synchronize, "cuCtxSynchronize");
  entry_points.look_up(driver.ctx_enable_peer_access, "cuCtxEnablePeerAccess");
  entry_points.look_up(driver.mem_get_info, "cuMemGetInfo");
  entry_points.look_up(driver.mem_alloc, "cuMemAlloc");
  entry_points.look_up(driver.mem_free, "cuMemFree");
  if (!entry_points.find(driver.mem_get_allocation_granularity, "cuMemGetAllocationGranularity") ||
      !entry_points.find(driver.mem_address_reserve, "cuMemAddressReserve") ||
      !entry_points.find(driver.mem_address_free, "cuMemAddressFree") ||
      !entry_points.find(driver.mem_create, "cuMemCreate") || !entry_points.find(driver.mem_release, "cuMemRelease") ||
      !entry_points.find(driver.mem_unmap, "cuMemUnmap") ||
      !entry_points.find(driver.mem_set_access, "cuMemSetAccess") || !entry_points.find(driver.mem_map, "cuMemMap")) {
    driver.mem_map = nullptr;  // all or none
  }
  entry_points.look_up(driver.mem_host_register, "cuMemHostRegister");
  entry_points.look_up(driver.mem_host_unregister, "cuMemHostUnregister");
  entry_points.look_up(driver.memcpy_htod_async, "cuMemcpyHtoDAsync");
  entry_points.look_up(driver.memcpy_dtoh_async, "cuMemcpyDtoHAsync");
  entry_points.look_up(driver.memcpy_peer_async, "cuMemcpyPeerAsync");
  entry_points.look_up(driver.stream_create, "cuStreamCreate");
  entry_points.look_up(driver.stream_destroy, "cuStreamDestroy");
  entry_points.look_up(driver.stream_synchronize, "cuStreamSynchronize");
  entry_points.look_up(driver.event_create, "cuEventCreate");
  entry_points.look_up(driver.event_record, "cuEventRecord");
  entry_points.look_up(driver.event_synchronize, "cuEventSynchronize");
  entry_points.look_up(driver.event_destroy, "cuEventDestroy");
  entry_points.look_up(driver.stream_wait_event, "cuStreamWaitEvent");
  entry_points.look_up(driver.stream_begin_capture, "cuStreamBeginCapture");
  entry_points.look_up(driver.stream_end_capture, "cuStreamEndCapture");
  entry_points.look_up(driver.graph_get_nodes, "cuGraphGetNodes");
  entry_points.look_up(driver.graph_node_get_type, "cuGraphNodeGetType");
  entry_points.look_up(driver.graph_memcpy_node_get_params, "cuGraphMemcpyNodeGetParams");
  entry_points.look_up(driver.graph_instantiate, "cuGraphInstantiateWithFlags");
  entry_points.look_up(driver.graph_destroy, "cuGraphDestroy");
  entry_points.look_up(driver.graph_launch, "cuGraphLaunch");
  entry_points.look_up(driver.graph_exec_destroy, "cuGraphExecDestroy");
  entry_points.look_up(driver.pointer_get_attribute, "cuPointerGetAttribute");
  return driver;
}

const CudaDriver* find_cuda_driver(std::string* reason) {
  static std::once_flag once;
  static std::optional<CudaDriver> driver;
  static std::string why_not;
  std::call_once(once, [] {
    try {
      driver = load_cuda_driver("libcuda.so.1");
    } catch (const Error& error) {
      why_not = error.what();
    }
  });
  if (reason != nullptr) {
    *reason = why_not;
  }
  return driver ? &*driver : nullptr;
}

}  // namespace ortmulti
