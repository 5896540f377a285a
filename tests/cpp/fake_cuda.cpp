#include "fake_cuda.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

namespace ortmulti::tests {
namespace {

std::unique_ptr<FakeCuda>& holder() {
  static std::unique_ptr<FakeCuda> fake = std::make_unique<FakeCuda>();
  return fake;
}

thread_local CUcontext current_context = nullptr;
thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

// Notes a second caller while the first one is still inside; lets others run, so that one would come.
class Alone {
 public:
  Alone() {
    if (inside.fetch_add(1) != 0) {
      FakeCuda::state().overlapped = true;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));  // many yields starve beside busy processes
  }
  ~Alone() { inside.fetch_sub(1); }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;

 private:
  static inline std::atomic<int> inside{0};
};

CUresult init(unsigned flags) {
  const Alone alone;
  ++FakeCuda::state().init_calls;
  return flags == 0 ? result_of("cuInit") : CUDA_ERROR_INVALID_VALUE;
}

CUresult driver_get_version(int* version) {
  *version = 13000;
  return result_of("cuDriverGetVersion");
}

CUresult get_error_name(CUresult error, const char** name) {
  switch (error) {
    case CUDA_ERROR_NO_DEVICE:
      *name = "CUDA_ERROR_NO_DEVICE";
      return CUDA_SUCCESS;
    case CUDA_ERROR_OUT_OF_MEMORY:
      *name = "CUDA_ERROR_OUT_OF_MEMORY";
      return CUDA_SUCCESS;
    case CUDA_ERROR_ECC_UNCORRECTABLE:
      *name = "CUDA_ERROR_ECC_UNCORRECTABLE";
      return CUDA_SUCCESS;
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
      *name = "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED";
      return CUDA_SUCCESS;
    default:
      *name = nullptr;
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult get_error_string(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_ECC_UNCORRECTABLE ? "uncorrectable ECC error encountered" : nullptr;
  return *text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult device_get_count(int* count) {
  *count = FakeCuda::state().devices;
  return result_of("cuDeviceGetCount");
}

CUresult device_get(CUdevice* device, int ordinal) {
  if (ordinal < 0 || ordinal >= FakeCuda::state().devices) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *device = ordinal;
  return result_of("cuDeviceGet");
}

CUresult device_get_name(char* name, int length, CUdevice device) {
  std::snprintf(name, static_cast<std::size_t>(length), "Fake GPU %d", device);
  return result_of("cuDeviceGetName");
}

CUresult device_get_uuid(CUuuid* uuid, CUdevice device) {
  for (std::size_t i = 0; i < sizeof(uuid->bytes); ++i) {
    const auto byte = static_cast<unsigned char>(0x0f + 0x10 * i);
    std::memcpy(&uuid->bytes[i], &byte, 1);
  }
  uuid->bytes[0] = static_cast<char>(device);
  return result_of("cuDeviceGetUuid");
}

CUresult device_get_pci_bus_id(char* text, int length, CUdevice device) {
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0", 0x18 + device);
  return result_of("cuDeviceGetPCIBusId");
}

CUresult device_total_mem(std::size_t* bytes, CUdevice device) {
  *bytes = FakeCuda::total_memory(device);
  return result_of("cuDeviceTotalMem");
}

CUresult device_get_attribute(int* value, CUdevice_attribute attribute, CUdevice /*device*/) {
  if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) {
    *value = 9;
    return result_of("major");
  }
  if (attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) {
    *value = FakeCuda::state().stable_addresses ? 1 : 0;
    return result_of("stable addresses");
  }
  if (attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) {
    *value = FakeCuda::state().shareable ? 1 : 0;
    return result_of("shareable");
  }
  *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? 1 : -1;
  return result_of("minor");
}

CUresult device_can_access_peer(int* can, CUdevice device, CUdevice peer) {
  const FakeCuda& fake = FakeCuda::state();
  *can = fake.peers && device != peer && fake.unreachable.count({device, peer}) == 0 ? 1 : 0;
  return result_of("cuDeviceCanAccessPeer");
}

// Contexts are the addresses of these.
char context_addresses[64];

CUresult primary_ctx_retain(CUcontext* context, CUdevice device) {
  const Alone alone;
  if (const CUresult failed = result_of("cuDevicePrimaryCtxRetain"); failed != CUDA_SUCCESS) {
    return failed;
  }
  FakeCuda& fake = FakeCuda::state();
  if (fake.on_context) {
    fake.on_context(device);
  }
  const std::lock_guard lock(fake.mutex);
  fake.contexts.push_back(device);
  *context = reinterpret_cast<CUcontext>(&context_addresses[device]);
  return CUDA_SUCCESS;
}

CUresult ctx_set_current(CUcontext context) {
  const CUresult result = result_of("cuCtxSetCurrent");
  if (result == CUDA_SUCCESS) {
    current_context = context;
  }
  return result;
}

CUresult mem_get_info(std::size_t* free, std::size_t* total) {
  const int device = FakeCuda::current();
  if (device < 0) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  *free = FakeCuda::state().free_bytes(device);
  *total = FakeCuda::total_memory(device);
  return result_of("cuMemGetInfo");
}

CUresult thread_capture_mode(CUstreamCaptureMode* mode) {
  std::swap(capture_mode, *mode);
  return CUDA_SUCCESS;
}

CUresult ctx_get_current(CUcontext* context) {
  *context = current_context;
  return result_of("cuCtxGetCurrent");
}

}  // namespace

// Beside a capture of the mode CU_STREAM_CAPTURE_MODE_GLOBAL, as driver 580 has it.
bool forbidden_beside_captures(const std::string& function) {
  static const std::set<std::string> forbidden{"cuMemAlloc", "cuMemFree", "cuMemHostRegister", "cuEventSynchronize",
                                               "cuStreamSynchronize"};
  return forbidden.count(function) != 0;
}

CUresult result_of(const char* function) {
  FakeCuda& fake = FakeCuda::state();
  CUresult result = CUDA_SUCCESS;
  if (fake.captured_by_others && FakeCuda::minds_captures() && forbidden_beside_captures(function)) {
    ++fake.failed_beside_captures;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  {
    const std::lock_guard lock(fake.mutex);
    const int call = ++fake.calls[function];
    if (const auto always = fake.failing.find(function); always != fake.failing.end()) {
      result = always->second;
    } else if (const auto once = fake.failing_call.find(function);
               once != fake.failing_call.end() && once->second.call == call) {
      result = once->second.result;
    }
  }
  if (fake.on_call) {
    fake.on_call(function);
  }
  return result;
}

int device_of(CUcontext context) {
  return context == nullptr ? -1 : static_cast<int>(reinterpret_cast<const char*>(context) - &context_addresses[0]);
}

FakeCuda& FakeCuda::state() { return *holder(); }

FakeCuda& FakeCuda::reset() {
  state().end_streams();  // while their threads can ask for the state
  holder() = std::make_unique<FakeCuda>();
  current_context = nullptr;
  return *holder();
}

int FakeCuda::current() { return device_of(current_context); }

bool FakeCuda::minds_captures() { return capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL; }

CudaDriver FakeCuda::table() {
  CudaDriver driver;
  driver.init = init;
  driver.driver_get_version = driver_get_version;
  driver.get_error_name = get_error_name;
  driver.get_error_string = get_error_string;
  driver.device_get_count = device_get_count;
  driver.device_get = device_get;
  driver.device_get_name = device_get_name;
  driver.device_get_uuid = device_get_uuid;
  driver.device_get_pci_bus_id = device_get_pci_bus_id;
  driver.device_total_mem = device_total_mem;
  driver.device_get_attribute = device_get_attribute;
  driver.device_can_access_peer = device_can_access_peer;
  driver.primary_ctx_retain = primary_ctx_retain;
  driver.ctx_set_current = ctx_set_current;
  driver.ctx_get_current = ctx_get_current;
  driver.thread_capture_mode = thread_capture_mode;
  driver.mem_get_info = mem_get_info;
  add_work(driver);
  return driver;
}

}  // namespace ortmulti::tests
