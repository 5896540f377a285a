// The driver in host memory is to catch what a real one would suffer from. These tests show that it does: a test whose
// driver no longer notices would pass.
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <vector>

#include "fake_cuda.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

class FakeDriver : public testing::Test {
 protected:
  FakeDriver() {
    fake.devices = 3;
    for (int device = 0; device < 3; ++device) {
      CUcontext context = nullptr;
      driver.primary_ctx_retain(&context, device);
      contexts.push_back(context);
    }
    use(0);
  }
  void TearDown() override { FakeCuda::reset(); }

  void use(int device) const { driver.ctx_set_current(contexts.at(static_cast<std::size_t>(device))); }
  CUdeviceptr allocate(std::size_t size) const {
    CUdeviceptr address = 0;
    EXPECT_EQ(driver.mem_alloc(&address, size), CUDA_SUCCESS);
    return address;
  }
  CUdeviceptr reserve(std::size_t size) const {
    CUdeviceptr address = 0;
    EXPECT_EQ(driver.mem_address_reserve(&address, size, 0, 0, 0), CUDA_SUCCESS);
    return address;
  }
  static CUmemAllocationProp on(int device) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    return properties;
  }
  CUmemGenericAllocationHandle create(std::size_t size, int device) const {
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp properties = on(device);
    EXPECT_EQ(driver.mem_create(&handle, size, &properties, 0), CUDA_SUCCESS);
    return handle;
  }
  CUresult set_access(CUdeviceptr address, std::size_t size, int device) const {
    const CUmemAccessDesc access{on(device).location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return driver.mem_set_access(address, size, &access, 1);
  }
  // Memory of device 0, without a handle that holds it any more.
  void map(CUdeviceptr address, std::size_t size) const {
    const CUmemGenericAllocationHandle handle = create(size, 0);
    EXPECT_EQ(driver.mem_map(address, size, 0, handle, 0), CUDA_SUCCESS);
    EXPECT_EQ(driver.mem_release(handle), CUDA_SUCCESS);
    EXPECT_EQ(set_access(address, size, 0), CUDA_SUCCESS);
  }
  CUstream stream() const {
    CUstream stream = nullptr;
    EXPECT_EQ(driver.stream_create(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    return stream;
  }
  CUevent event() const {
    CUevent event = nullptr;
    EXPECT_EQ(driver.event_create(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    return event;
  }
  void pin(std::string& text) const {
    EXPECT_EQ(driver.mem_host_register(text.data(), text.size(), CU_MEMHOSTREGISTER_PORTABLE), CUDA_SUCCESS);
  }
  // Copies wait from here on until release() is called.
  void hold() {
    fake.on_copy = [gate = released.get_future().share()](const FakeCuda::Copy&) {
      gate.wait();
      return CUDA_SUCCESS;
    };
  }
  void release() { released.set_value(); }

  FakeCuda& fake = FakeCuda::reset();
  CudaDriver driver = FakeCuda::table();
  std::vector<CUcontext> contexts;
  std::promise<void> released;
};

TEST_F(FakeDriver, CopiesAfterTheyWereAskedFor) {
  const CUdeviceptr device = allocate(1000);
  CUstream on = stream();
  CUevent done = event();
  std::string host(500, 'x');
  pin(host);
  hold();
  EXPECT_EQ(driver.memcpy_htod_async(device + 100, host.data(), 500, on), CUDA_SUCCESS);
  EXPECT_EQ(driver.event_record(done, on), CUDA_SUCCESS);
  EXPECT_EQ(fake.read(device + 100, 1), "\xa5");
  host[0] = 'y';  // what a copy that is under way may see
  release();
  EXPECT_EQ(driver.event_synchronize(done), CUDA_SUCCESS);
  EXPECT_EQ(fake.read(device + 100, 500), "y" + std::string(499, 'x'));
  EXPECT_EQ(fake.read(device + 600, 400), std::string(400, '\xa5'));
  std::string back(500, ' ');
  pin(back);
  EXPECT_EQ(driver.memcpy_dtoh_async(back.data(), device + 100, 500, on), CUDA_SUCCESS);
  EXPECT_EQ(driver.stream_synchronize(on), CUDA_SUCCESS);
  EXPECT_EQ(back, host);
  EXPECT_EQ(fake.pageable_copies, 0);
  EXPECT_EQ(fake.peak_registered(), 1000U);
  EXPECT_TRUE(fake.misuses().empty());
}

TEST_F(FakeDriver, CountsWhatIsLive) {
  constexpr std::size_t size = FakeCuda::granularity;
  EXPECT_TRUE(fake.live().nothing());
  const CUdeviceptr device = allocate(1000);
  const CUdeviceptr address = reserve(size);
  map(address, size);
  const CUmemGenericAllocationHandle held = create(size, 0);
  std::string host(10, ' ');
  pin(host);
  CUstream on = stream();
  CUevent done = event();
  const FakeCuda::Live live = fake.live();
  EXPECT_EQ(live.allocations, 3U);
  EXPECT_EQ(live.registrations + live.streams + live.events + live.addresses, 4U);
  EXPECT_EQ(fake.allocated(0), 1000U + 2 * size);
  EXPECT_EQ(driver.mem_free(device), CUDA_SUCCESS);
  EXPECT_EQ(driver.mem_unmap(address, size), CUDA_SUCCESS);
  EXPECT_EQ(driver.mem_address_free(address, size), CUDA_SUCCESS);
  EXPECT_EQ(driver.mem_release(held), CUDA_SUCCESS);
  EXPECT_EQ(driver.mem_host_unregister(host.data()), CUDA_SUCCESS);
  EXPECT_EQ(driver.stream_destroy(on), CUDA_SUCCESS);
  EXPECT_EQ(driver.event_destroy(done), CUDA_SUCCESS);
  EXPECT_TRUE(fake.live().nothing());
  EXPECT_EQ(fake.allocated(0), 0U);
  EXPECT_TRUE(fake.misuses().empty());
}

TEST_F(FakeDriver, NotesWhatIsGivenBackUnderACopy) {
  constexpr std::size_t size = FakeCuda::granularity;
  const CUdeviceptr device = allocate(size);
  const CUdeviceptr address = reserve(size);
  map(address, size);
  CUstream on = stream();
  std::string host(size, 'x');
  pin(host);
  hold();
  EXPECT_EQ(driver.memcpy_htod_async(device + 50, host.data() + 50, 50, on), CUDA_SUCCESS);
  EXPECT_EQ(driver.memcpy_htod_async(address + 50, host.data() + 50, 50, on), CUDA_SUCCESS);
  EXPECT_EQ(driver.stream_destroy(on), CUDA_SUCCESS);  // what was asked for is still done
  EXPECT_EQ(driver.mem_free(device), CUDA_SUCCESS);
  EXPECT_EQ(driver.mem_unmap(address, size), CUDA_SUCCESS);
  EXPECT_EQ(driver.mem_address_free(address, size), CUDA_SUCCESS);
  EXPECT_EQ(driver.mem_host_unregister(host.data()), CUDA_SUCCESS);
  release();
  fake.settle();
  EXPECT_EQ(fake.misuses(), (std::vector<std::string>{"memory is freed under a copy", "memory is unmapped under a copy",
                                                      "host memory is unregistered under a copy"}));
}

TEST_F(FakeDriver, CountsCopiesFromMemoryThatIsNotRegistered) {
  const CUdeviceptr device = allocate(100);
  CUstream on = stream();
  std::string host(100, 'x');
  EXPECT_EQ(driver.memcpy_htod_async(device, host.data(), 100, on), CUDA_SUCCESS);
  EXPECT_EQ(fake.read(device, 100), host);  // such a copy is made at once
  EXPECT_EQ(fake.pageable_copies, 1);
  EXPECT_EQ(driver.mem_host_register(host.data(), 100, 0), CUDA_SUCCESS);
  EXPECT_EQ(driver.memcpy_htod_async(device, host.data(), 100, on), CUDA_SUCCESS);
  EXPECT_EQ(driver.stream_synchronize(on), CUDA_SUCCESS);
  EXPECT_EQ(fake.pageable_copies, 1);
  use(1);  // not portable: not registered for this context
  const CUdeviceptr other = allocate(100);
  EXPECT_EQ(driver.memcpy_htod_async(other, host.data(), 100, stream()), CUDA_SUCCESS);
  EXPECT_EQ(fake.pageable_copies, 2);
}

TEST_F(FakeDriver, CountsCopiesWithoutPeerAccess) {
  constexpr std::size_t size = FakeCuda::granularity;
  const CUdeviceptr address = reserve(size);
  map(address, size);
  const auto copy = [&](int device) {
    use(device);
    EXPECT_EQ(driver.memcpy_peer_async(allocate(size), contexts[static_cast<std::size_t>(device)], address, contexts[0],
                                       size, nullptr),
              CUDA_SUCCESS);
    EXPECT_EQ(driver.ctx_synchronize(), CUDA_SUCCESS);
    return fake.indirect_copies.exchange(0) == 0;
  };
  EXPECT_FALSE(copy(1));
  EXPECT_EQ(driver.ctx_enable_peer_access(contexts[0], 0), CUDA_SUCCESS);  // which is for plain memory
  EXPECT_FALSE(copy(1));
  EXPECT_EQ(set_access(address, size, 1), CUDA_SUCCESS);
  EXPECT_TRUE(copy(1));
  EXPECT_FALSE(copy(2));
  EXPECT_TRUE(fake.misuses().empty());
}

TEST_F(FakeDriver, NotesWhatIsNotMapped) {
  constexpr std::size_t size = FakeCuda::granularity;
  const CUmemAllocationProp properties = on(0);
  CUdeviceptr none = 0;
  CUmemGenericAllocationHandle no_handle = 0;
  EXPECT_EQ(driver.mem_address_reserve(&none, size + 1, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver.mem_create(&no_handle, size + 1, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  const CUdeviceptr address = reserve(size);
  const std::string host(size, 'x');
  const auto copy = [&] { return driver.memcpy_htod_async(address, host.data(), size, nullptr); };
  EXPECT_EQ(copy(), CUDA_ERROR_INVALID_VALUE) << "nothing is mapped";
  EXPECT_EQ(set_access(address, size, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver.mem_unmap(address, size), CUDA_ERROR_INVALID_VALUE);
  const CUmemGenericAllocationHandle handle = create(size, 0);
  EXPECT_EQ(driver.mem_map(address, size, 0, handle + 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver.mem_map(address + size, size, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver.mem_map(address, size, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(copy(), CUDA_ERROR_INVALID_VALUE) << "without access";
  EXPECT_EQ(set_access(address, size, 3), CUDA_ERROR_INVALID_VALUE) << "no such device";
  EXPECT_EQ(set_access(address, size, 0), CUDA_SUCCESS);
  EXPECT_EQ(copy(), CUDA_SUCCESS);
  EXPECT_EQ(driver.mem_map(address, size, 0, handle, 0), CUDA_ERROR_INVALID_VALUE) << "twice";
  EXPECT_EQ(driver.mem_address_free(address, size), CUDA_ERROR_INVALID_VALUE) << "while it is mapped";
  EXPECT_EQ(driver.mem_release(handle), CUDA_SUCCESS);
  EXPECT_EQ(driver.mem_release(handle), CUDA_ERROR_INVALID_VALUE) << "twice";
  EXPECT_EQ(driver.mem_unmap(address, size), CUDA_SUCCESS);
  EXPECT_EQ(driver.mem_unmap(address, size), CUDA_ERROR_INVALID_VALUE) << "twice";
  EXPECT_EQ(driver.mem_map(address, size, 0, handle, 0), CUDA_ERROR_INVALID_VALUE) << "it is gone";
  EXPECT_EQ(driver.mem_address_free(address, 2 * size), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver.mem_address_free(address, size), CUDA_SUCCESS);
  EXPECT_EQ(driver.mem_address_free(address, size), CUDA_ERROR_INVALID_VALUE) << "twice";
  EXPECT_TRUE(fake.live().nothing());
  EXPECT_EQ(fake.misuses().size(), 16U);
}

TEST_F(FakeDriver, NotesWhatIsNotThere) {
  const CUdeviceptr device = allocate(100);
  CUstream on = stream();
  CUevent done = event();
  std::string host(200, 'x');
  pin(host);
  EXPECT_EQ(driver.memcpy_htod_async(device + 1, host.data(), 100, on), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(driver.memcpy_htod_async(device - 1, host.data(), 10, on), CUDA_ERROR_INVALID_VALUE);
  auto* const none = reinterpret_cast<CUstream>(done);
  EXPECT_EQ(driver.memcpy_htod_async(device, host.data(), 10, none), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(driver.mem_host_register(host.data() + 100, 200, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  use(1);
  EXPECT_EQ(driver.memcpy_htod_async(device, host.data(), 10, on), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(driver.event_record(done, stream()), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(driver.stream_destroy(on), CUDA_SUCCESS);
  EXPECT_EQ(driver.stream_synchronize(on), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(driver.event_destroy(done), CUDA_SUCCESS);
  EXPECT_EQ(driver.event_destroy(done), CUDA_ERROR_INVALID_HANDLE);
  driver.ctx_set_current(nullptr);
  EXPECT_EQ(driver.mem_free(device), CUDA_ERROR_INVALID_CONTEXT);
  use(0);
  EXPECT_EQ(driver.mem_free(device), CUDA_SUCCESS);
  EXPECT_EQ(driver.mem_free(device), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(fake.misuses().size(), 10U);
}

}  // namespace
}  // namespace ortmulti::tests
