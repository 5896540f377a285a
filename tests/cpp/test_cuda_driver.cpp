#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string>

#include "core/cuda/driver.hpp"
#include "fake_cuda.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

TEST(CudaDriver, IsMissingWhereItsLibraryIs) {
  EXPECT_TRUE(throws(ErrorKind::library, {"no NVIDIA driver", "libcuda_not_there.so.1"},
                     [] { load_cuda_driver("libcuda_not_there.so.1"); }));
}

TEST(CudaDriver, IsNotAnyLibrary) {
  EXPECT_TRUE(
      throws(ErrorKind::library, {"cuGetProcAddress_v2", "update the driver"}, [] { load_cuda_driver("libm.so.6"); }));
}

TEST(CudaDriver, HasEveryFunction) {
  // Nothing but pointers to functions.
  std::array<void*, sizeof(CudaDriver) / sizeof(void*)> functions{};
  const CudaDriver driver = load_cuda_driver(ORTMULTI_FAKE_DRIVER);
  static_assert(sizeof(functions) == sizeof(driver));
  std::memcpy(static_cast<void*>(functions.data()), &driver, sizeof(driver));
  EXPECT_EQ(std::count(functions.begin(), functions.end(), nullptr), 0);
}

TEST(CudaDriver, NamesTheFunctionThatItLacks) {
  for (const char* name : {"cuInit", "cuDeviceGetUuid", "cuMemGetInfo", "cuEventDestroy"}) {
    setenv("ORTMULTI_FAKE_DRIVER_LACKS", name, 1);
    EXPECT_TRUE(throws(ErrorKind::library, {name, "12.0"}, [] { load_cuda_driver(ORTMULTI_FAKE_DRIVER); }));
  }
  unsetenv("ORTMULTI_FAKE_DRIVER_LACKS");
}

TEST(CudaDriver, DoesWithoutStableAddresses) {
  for (const char* name : {"cuMemGetAllocationGranularity", "cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate",
                           "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemSetAccess"}) {
    setenv("ORTMULTI_FAKE_DRIVER_LACKS", name, 1);
    EXPECT_EQ(load_cuda_driver(ORTMULTI_FAKE_DRIVER).mem_map, nullptr) << name;
  }
  unsetenv("ORTMULTI_FAKE_DRIVER_LACKS");
}

TEST(CudaDriver, DescribesResults) {
  const CudaDriver driver = FakeCuda::table();
  EXPECT_EQ(driver.describe(CUDA_ERROR_ECC_UNCORRECTABLE),
            "CUDA_ERROR_ECC_UNCORRECTABLE (214): uncorrectable ECC error encountered");
  EXPECT_EQ(driver.describe(CUDA_ERROR_OUT_OF_MEMORY), "CUDA_ERROR_OUT_OF_MEMORY (2)");
  EXPECT_EQ(driver.describe(CUDA_ERROR_UNKNOWN), "unknown CUDA error (999)");
  EXPECT_EQ(CudaDriver().describe(CUDA_ERROR_NO_DEVICE), "unknown CUDA error (100)");
}

TEST(CudaDriver, OfTheMachineIsThereOrSaysWhyNot) {
  std::string reason = "unset";
  const CudaDriver* driver = find_cuda_driver(&reason);
  EXPECT_EQ(driver == nullptr, !reason.empty()) << reason;
  EXPECT_EQ(find_cuda_driver(nullptr), driver);
}

}  // namespace
}  // namespace ortmulti::tests
