#include <gtest/gtest.h>

#include <cstdlib>
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
  const CudaDriver driver = load_cuda_driver(ORTMULTI_FAKE_DRIVER);
  EXPECT_NE(driver.init, nullptr);
  EXPECT_NE(driver.driver_get_version, nullptr);
  EXPECT_NE(driver.get_error_name, nullptr);
  EXPECT_NE(driver.get_error_string, nullptr);
  EXPECT_NE(driver.device_get_count, nullptr);
  EXPECT_NE(driver.device_get, nullptr);
  EXPECT_NE(driver.device_get_name, nullptr);
  EXPECT_NE(driver.device_get_uuid, nullptr);
  EXPECT_NE(driver.device_get_pci_bus_id, nullptr);
  EXPECT_NE(driver.device_total_mem, nullptr);
  EXPECT_NE(driver.device_get_attribute, nullptr);
  EXPECT_NE(driver.device_can_access_peer, nullptr);
  EXPECT_NE(driver.primary_ctx_retain, nullptr);
  EXPECT_NE(driver.ctx_set_current, nullptr);
  EXPECT_NE(driver.ctx_get_current, nullptr);
  EXPECT_NE(driver.ctx_synchronize, nullptr);
  EXPECT_NE(driver.ctx_enable_peer_access, nullptr);
  EXPECT_NE(driver.mem_get_info, nullptr);
  EXPECT_NE(driver.mem_alloc, nullptr);
  EXPECT_NE(driver.mem_free, nullptr);
  EXPECT_NE(driver.mem_get_allocation_granularity, nullptr);
  EXPECT_NE(driver.mem_address_reserve, nullptr);
  EXPECT_NE(driver.mem_address_free, nullptr);
  EXPECT_NE(driver.mem_create, nullptr);
  EXPECT_NE(driver.mem_release, nullptr);
  EXPECT_NE(driver.mem_map, nullptr);
  EXPECT_NE(driver.mem_unmap, nullptr);
  EXPECT_NE(driver.mem_set_access, nullptr);
  EXPECT_NE(driver.mem_host_register, nullptr);
  EXPECT_NE(driver.mem_host_unregister, nullptr);
  EXPECT_NE(driver.memcpy_htod_async, nullptr);
  EXPECT_NE(driver.memcpy_dtoh_async, nullptr);
  EXPECT_NE(driver.memcpy_peer_async, nullptr);
  EXPECT_NE(driver.stream_create, nullptr);
  EXPECT_NE(driver.stream_destroy, nullptr);
  EXPECT_NE(driver.stream_synchronize, nullptr);
  EXPECT_NE(driver.event_create, nullptr);
  EXPECT_NE(driver.event_record, nullptr);
  EXPECT_NE(driver.event_synchronize, nullptr);
  EXPECT_NE(driver.event_destroy, nullptr);
  EXPECT_NE(driver.stream_wait_event, nullptr);
  EXPECT_NE(driver.stream_begin_capture, nullptr);
  EXPECT_NE(driver.stream_end_capture, nullptr);
  EXPECT_NE(driver.graph_get_nodes, nullptr);
  EXPECT_NE(driver.graph_node_get_type, nullptr);
  EXPECT_NE(driver.graph_memcpy_node_get_params, nullptr);
  EXPECT_NE(driver.graph_instantiate, nullptr);
  EXPECT_NE(driver.graph_destroy, nullptr);
  EXPECT_NE(driver.graph_launch, nullptr);
  EXPECT_NE(driver.graph_exec_destroy, nullptr);
  EXPECT_NE(driver.pointer_get_attribute, nullptr);
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
