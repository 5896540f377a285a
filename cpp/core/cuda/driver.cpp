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
  const char* missing = nullptr;
#define ORTMULTI_FIND(member, function, version) \
  missing = entry_points.find(driver.member, #function) ? missing : #function
  ORTMULTI_CUDA_FUNCTIONS(ORTMULTI_FIND)
  if (missing != nullptr) {
    throw Error(ErrorKind::library, std::string("the NVIDIA driver has no function ") + missing + " of CUDA 12.0");
  }
  ORTMULTI_CUDA_MAPPING_FUNCTIONS(ORTMULTI_FIND)
#undef ORTMULTI_FIND
  if (missing != nullptr) {
    driver.mem_map = nullptr;
  }
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
