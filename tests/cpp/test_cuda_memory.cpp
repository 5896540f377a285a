#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "core/base/error.hpp"
#include "core/cuda/device_sync_guard.hpp"
#include "core/cuda/gpu_memory.hpp"
#include "core/cuda/memory.hpp"
#include "core/cuda/nvml.hpp"
#include "core/pool/gpu_session.hpp"
#include "fake_cuda.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

class TheMemoryOfGpus : public testing::Test {
 protected:
  void TearDown() override { EXPECT_TRUE(cuda.misuses().empty()) << cuda.misuses().front(); }

  std::string read(const CudaMemory& memory, std::size_t size) const { return cuda.read(memory.address(), size); }
  std::unique_ptr<CudaMemory> stable(int device, std::size_t size) {
    return std::make_unique<CudaMemory>(startup, device, size, "it takes", CudaMemory::Address::stable);
  }
  // The text of the Error that `call` throws; empty without one.
  static std::string error_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::device);
      return error.what();
    }
    return "";
  }
  // Calls `act` with each call of the driver in it failing in turn, each time with what `prepare` made, which is then
  // looked at by `check` and destroyed: nothing may be left. `act` must throw but where only `harmless` calls fail.
  using Owner = std::unique_ptr<CudaMemory>;
  void fail_each_call(const std::function<Owner()>& prepare, const std::function<void(Owner&)>& act,
                      const std::function<void(const Owner&, bool failed)>& check,
                      const std::function<bool(const std::string& function, int call)>& harmless) {
    startup.context(0);  // which is there from then on
    const std::map<std::string, int> calls = [&] {
      auto memory = prepare();
      startup.make_current(1);
      cuda.calls.clear();
      act(memory);
      return cuda.calls;
    }();
    ASSERT_TRUE(cuda.live().nothing());
    for (const auto& [function, count] : calls) {
      for (int call = 1; call <= count; ++call) {
        SCOPED_TRACE(function + ", call " + std::to_string(call));
        auto memory = prepare();
        startup.make_current(1);
        cuda.calls.clear();
        cuda.failing_call = {{function, {call, CUDA_ERROR_ECC_UNCORRECTABLE}}};
        const std::string error = error_of([&] { act(memory); });
        cuda.failing_call.clear();
        EXPECT_EQ(error.empty(), harmless(function, call)) << error;
        EXPECT_TRUE(error.empty() || (error.find("cuda:") != std::string::npos &&
                                      error.find("CUDA_ERROR_ECC_UNCORRECTABLE") != std::string::npos))
            << error;
        check(memory, !error.empty());
        memory.reset();
        EXPECT_TRUE(cuda.live().nothing());
      }
    }
  }
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's addresses are numbers
  static void* pointer(const CudaMemory& memory) { return reinterpret_cast<void*>(memory.address()); }

  static constexpr std::size_t page = FakeCuda::granularity;
  FakeCuda& cuda = FakeCuda::reset();
  CudaDriver driver = FakeCuda::table();
  CudaStartup startup{&driver, ""};
};

TEST_F(TheMemoryOfGpus, is_freed_with_its_owner_and_in_its_context) {
  {
    const CudaMemory one(startup, 1, 1000, "it takes");
    const CudaMemory nothing(startup, 0, 0, "it takes");
    EXPECT_EQ(cuda.live().allocations, 2);
    EXPECT_GE(cuda.allocated(1), 1000);
    EXPECT_NE(nothing.address(), 0);
  }
  EXPECT_TRUE(cuda.live().nothing());
  EXPECT_EQ(FakeCuda::current(), 0);  // as it was
}

TEST_F(TheMemoryOfGpus, is_kept_for_the_same_size_and_the_oldest_block_is_freed) {
  constexpr std::size_t megabyte = 1U << 20U;
  const auto blocks = std::make_shared<DeviceBlocks>(startup, 0);
  {
    std::vector<std::shared_ptr<const CudaMemory>> large;  // of sizes that never come again
    large.reserve(DeviceBlocks::kept);
    for (std::size_t i = 0; i < DeviceBlocks::kept; ++i) {
      large.push_back(blocks->take((i + 1) * megabyte));
    }
  }
  EXPECT_EQ(cuda.live().allocations, DeviceBlocks::kept);
  const auto asked = [&] { return cuda.calls["cuMemAlloc"]; };
  for (std::size_t i = 0; i < DeviceBlocks::kept; ++i) {
    blocks->take(1000 + i);
  }
  EXPECT_EQ(cuda.live().allocations, DeviceBlocks::kept);
  EXPECT_LT(cuda.allocated(0), megabyte) << "the large blocks stay";
  const int before = asked();
  for (std::size_t i = 0; i < 2 * DeviceBlocks::kept; ++i) {
    blocks->take(1000 + i % 2);
  }
  EXPECT_EQ(asked(), before) << "a small block is allocated for each request";
}

TEST_F(TheMemoryOfGpus, says_how_much_there_is_where_it_does_not_suffice) {
  const std::size_t size = FakeCuda::free_memory(0) + 1;
  EXPECT_TRUE(throws(ErrorKind::out_of_memory, {"it takes 536 MB on cuda:0, which has 536 MB free of 1073 MB"},
                     [&] { const CudaMemory memory(startup, 0, size, "it takes"); }));
  cuda.failing["cuMemAlloc"] = CUDA_ERROR_OUT_OF_MEMORY;
  EXPECT_TRUE(throws(ErrorKind::out_of_memory, {"it takes 0 kB on cuda:0", "(2)"},
                     [&] { const CudaMemory memory(startup, 0, 8, "it takes"); }));
  EXPECT_TRUE(cuda.live().nothing());
}

TEST_F(TheMemoryOfGpus, is_counted_by_what_it_is_for_as_long_as_it_is_there) {
  const auto counted = [&](MemoryUse use) { return gpu_memory(startup, 0).uses.at(static_cast<std::size_t>(use)); };
  const GpuMemory before = gpu_memory(startup, 0);
  const std::uint64_t buffers = counted(MemoryUse::buffers);
  const std::uint64_t weights = counted(MemoryUse::weights);
  {
    const CudaMemory plain(startup, 0, 1000, "it takes");
    CudaMemory memory(startup, 0, 1000, {"the weights take", MemoryUse::weights}, CudaMemory::Address::stable);
    EXPECT_EQ(counted(MemoryUse::buffers), buffers + 1000);
    EXPECT_EQ(counted(MemoryUse::weights), weights + memory.mapped_bytes());
    EXPECT_EQ(memory.taken(), memory.mapped_bytes());
    EXPECT_EQ(gpu_memory(startup, 0).total, before.total);
    EXPECT_GE(gpu_memory(startup, 0).used, before.used + 1000 + memory.mapped_bytes());
    memory.give_back();
    EXPECT_EQ(counted(MemoryUse::weights), weights);
    memory.take();
    EXPECT_EQ(counted(MemoryUse::weights), weights + memory.mapped_bytes());
    cuda.failing["cuMemAlloc"] = CUDA_ERROR_OUT_OF_MEMORY;
    EXPECT_THROW(CudaMemory(startup, 0, 1000, "it takes"), Error);
  }
  EXPECT_EQ(counted(MemoryUse::buffers), buffers);
  EXPECT_EQ(counted(MemoryUse::weights), weights);
  EXPECT_EQ(gpu_memory(startup, 1).uses, MemoryUses{}) << "of another device";
}

TEST(GpuMemoryTest, UncountedIsWhatTheProcessHasBesideOrAllWhereThatIsUnknown) {
  GpuMemory memory{.uses = {10, 20, 3, 5}, .of_process = 100, .used = 1000, .total = 2000};
  EXPECT_EQ(memory.uncounted().bytes, 67) << "with buffers, of whichever model";
  EXPECT_TRUE(memory.uncounted().of_process);
  memory.of_process.reset();
  EXPECT_EQ(memory.uncounted().bytes, 967);
  EXPECT_FALSE(memory.uncounted().of_process) << "it is another quantity";
}

TEST(NvmlTest, FindsThisProcessAmongThoseOfTheDevice) {
  const Nvml nvml(ORTMULTI_FAKE_DRIVER);
  CudaDeviceInfo device;
  device.uuid = "GPU-few";
  EXPECT_EQ(nvml.memory_of_process(device), 7'000'000U);
  device.uuid = "GPU-many";  // more than are asked for first
  EXPECT_EQ(nvml.memory_of_process(device), 7'000'000U);
  device.uuid = "GPU-silent";
  EXPECT_EQ(nvml.memory_of_process(device), std::nullopt) << "its bytes are not available";
  device.uuid = "GPU-others";
  EXPECT_EQ(nvml.memory_of_process(device), std::nullopt);
  device.uuid = "GPU-instance";  // of a partitioned GPU, which NVML calls otherwise
  EXPECT_EQ(nvml.memory_of_process(device), 7'000'000U);
  device.uuid = "GPU-unknown";
  EXPECT_EQ(nvml.memory_of_process(device), std::nullopt);
  device.pci_bus_id = "0000:18:00.0";
  EXPECT_EQ(nvml.memory_of_process(device), 7'000'000U);
  EXPECT_EQ(Nvml("no such library").memory_of_process(device), std::nullopt);
}

TEST_F(TheMemoryOfGpus, is_copied_to_and_from_before_a_copy_returns) {
  const std::string text(100'000, 'x');
  std::string back(text.size(), '-');
  const CudaMemory one(startup, 0, text.size(), "it takes");
  const CudaMemory other(startup, 1, text.size(), "it takes");
  startup.make_current(1);
  copy_to_device(startup, 0, pointer(one), text.data(), text.size());
  EXPECT_EQ(FakeCuda::current(), 1);
  EXPECT_EQ(read(one, text.size()), text);
  copy_between_devices(startup, 1, pointer(other), 0, pointer(one), text.size());
  EXPECT_EQ(read(other, text.size()), text);
  copy_to_host(startup, 1, back.data(), pointer(other), back.size());
  EXPECT_EQ(back, text);
  EXPECT_EQ(FakeCuda::current(), 1);
}

TEST_F(TheMemoryOfGpus, can_be_copied_to_by_a_thread_that_had_no_context) {
  const CudaMemory memory(startup, 1, 4, "it takes");
  std::thread([&] {
    copy_to_device(startup, 1, pointer(memory), "abcd", 4);
    EXPECT_EQ(FakeCuda::current(), -1);
  }).join();
  EXPECT_EQ(read(memory, 4), "abcd");
}

TEST_F(TheMemoryOfGpus, says_which_copy_failed) {
  const CudaMemory memory(startup, 0, 4, "it takes");
  cuda.on_copy = [](const FakeCuda::Copy& /*copy*/) { return CUDA_ERROR_ILLEGAL_ADDRESS; };
  EXPECT_TRUE(throws(ErrorKind::device, {"copying to cuda:0"},
                     [&] { copy_to_device(startup, 0, pointer(memory), "abcd", 4); }));
  cuda.repair();
  std::string back(4, '-');
  EXPECT_TRUE(throws(ErrorKind::device, {"copying from cuda:0"},
                     [&] { copy_to_host(startup, 0, back.data(), pointer(memory), 4); }));
  cuda.on_copy = nullptr;
  cuda.repair();
}

TEST_F(TheMemoryOfGpus, is_left_to_the_parent_after_a_fork) {
  const CudaMemory memory(startup, 0, 4, "it takes");
  EXPECT_TRUE(in_forked_child([&] {
    return static_cast<bool>(
        throws(ErrorKind::forked, {}, [&] { copy_to_device(startup, 0, pointer(memory), "abcd", 4); }));
  }));
}

TEST_F(TheMemoryOfGpus, is_given_back_and_taken_under_the_same_address) {
  const std::string text(page + 1, 'x');
  cuda.memory_limit[0] = 2 * page;
  const auto memory = stable(0, text.size());
  ASSERT_TRUE(memory->stable());
  const CUdeviceptr address = memory->address();
  copy_to_device(startup, 0, pointer(*memory), text.data(), text.size());
  startup.make_current(1);
  memory->give_back();
  EXPECT_EQ(cuda.free_bytes(0), 2 * page);
  EXPECT_EQ(cuda.live().addresses, 1U);
  {
    const CudaMemory other(startup, 0, 2 * page, "it takes");
  }  // meanwhile
  startup.make_current(1);
  memory->take();
  EXPECT_EQ(FakeCuda::current(), 1);
  EXPECT_EQ(cuda.free_bytes(0), 0U);
  EXPECT_EQ(memory->address(), address);
  EXPECT_NE(read(*memory, text.size()), text) << "what was in there is gone";
  copy_to_device(startup, 0, pointer(*memory), text.data(), text.size());
  EXPECT_EQ(read(*memory, text.size()), text);
}

TEST_F(TheMemoryOfGpus, leaves_nothing_whether_it_was_given_back_or_not) {
  stable(1, 1000);
  EXPECT_TRUE(cuda.live().nothing());
  const auto current = FakeCuda::current();
  stable(1, 0)->give_back();
  EXPECT_TRUE(cuda.live().nothing());
  EXPECT_EQ(FakeCuda::current(), current);
}

TEST_F(TheMemoryOfGpus, is_given_back_once_the_device_has_done_its_work) {
  const auto memory = stable(0, page);
  std::string text(page, 'x');
  startup.make_current(0);
  ASSERT_EQ(driver.mem_host_register(text.data(), text.size(), CU_MEMHOSTREGISTER_PORTABLE), CUDA_SUCCESS);
  CUstream stream = nullptr;
  ASSERT_EQ(driver.stream_create(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  std::promise<void> waited;
  cuda.on_call = [&](const std::string& function) {
    if (function == "cuCtxSynchronize") {
      waited.set_value();
    }
  };
  cuda.on_copy = [waits = waited.get_future().share()](const FakeCuda::Copy& /*copy*/) {
    waits.wait();
    return CUDA_SUCCESS;
  };
  ASSERT_EQ(driver.memcpy_htod_async(memory->address(), text.data(), text.size(), stream), CUDA_SUCCESS);
  memory->give_back();  // else the copy is a misuse
  cuda.on_call = nullptr;
  EXPECT_EQ(driver.stream_destroy(stream), CUDA_SUCCESS);
  EXPECT_EQ(driver.mem_host_unregister(text.data()), CUDA_SUCCESS);
}

TEST_F(TheMemoryOfGpus, is_not_given_back_under_a_run_that_may_capture) {
  const auto memory = stable(0, page);
  std::optional<DeviceSyncGuard> run(std::in_place, Device::cuda(0), DeviceSyncGuard::Work::may_capture);
  const auto given_back = std::async(std::launch::async, [&] { memory->give_back(); });
  EXPECT_EQ(given_back.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  run.reset();
  given_back.wait();
  EXPECT_EQ(cuda.allocated(0), 0U);
}

TEST_F(TheMemoryOfGpus, says_how_much_there_is_where_it_cannot_be_taken_again) {
  const std::size_t size = std::size_t{300} << 20U;
  const auto memory = stable(0, size);
  memory->give_back();
  cuda.memory_limit[0] = size - 1;
  const auto fails = [&](std::initializer_list<const char*> words) {
    const auto result = throws(ErrorKind::out_of_memory, words, [&] { memory->take(); });
    EXPECT_EQ(cuda.allocated(0), 0U);
    return result;
  };
  EXPECT_TRUE(fails({"it takes 314 MB on cuda:0, which has 314 MB free of 1073 MB"}));
  cuda.memory_limit.clear();
  cuda.failing["cuMemCreate"] = CUDA_ERROR_OUT_OF_MEMORY;
  EXPECT_TRUE(fails({"it takes 314 MB on cuda:0, which has 536 MB free of 1073 MB", "CUDA_ERROR_OUT_OF_MEMORY (2)"}));
  EXPECT_TRUE(throws(ErrorKind::out_of_memory, {"it takes 4 kB"}, [&] { stable(0, page); }));
  EXPECT_EQ(cuda.live().addresses, 1U);
  cuda.failing.clear();
  memory->take();
  EXPECT_EQ(cuda.allocated(0), size);
}

TEST_F(TheMemoryOfGpus, is_plain_where_there_are_no_stable_addresses) {
  const auto is_plain = [&] {
    const auto memory = stable(0, page);
    const FakeCuda::Live live = cuda.live();
    return !memory->stable() && live.allocations == 1 && live.addresses == 0 && cuda.calls["cuMemCreate"] == 0;
  };
  const auto mem_map = std::exchange(driver.mem_map, nullptr);
  EXPECT_TRUE(is_plain());
  driver.mem_map = mem_map;
  cuda.stable_addresses = false;
  EXPECT_TRUE(is_plain());
  cuda.stable_addresses = true;
  for (const char* function : {"stable addresses", "cuMemGetAllocationGranularity", "cuMemAddressReserve"}) {
    cuda.failing = {{function, CUDA_ERROR_NOT_SUPPORTED}};
    EXPECT_TRUE(is_plain()) << function;
  }
  cuda.failing.clear();
  EXPECT_FALSE(is_plain());
}

TEST_F(TheMemoryOfGpus, of_stable_addresses_leaves_nothing_whatever_fails_at_first) {
  const auto allocate = [&](Owner& memory) { memory = stable(0, page); };
  fail_each_call([] { return Owner(); }, allocate,
                 [](const Owner& memory, bool failed) { EXPECT_EQ(memory == nullptr, failed); },
                 [](const std::string& function, int /*call*/) {
                   const bool plain = function == "stable addresses" || function == "cuMemGetAllocationGranularity" ||
                                      function == "cuMemAddressReserve" || function == "cuDeviceGet" ||
                                      function == "cuDeviceCanAccessPeer";
                   return plain || function == "cuCtxGetCurrent" || function == "cuMemSetAccess";  // of peers
                 });
}

TEST_F(TheMemoryOfGpus, stays_given_back_where_it_cannot_be_taken) {
  const auto given_back = [&] {
    auto memory = stable(0, page);
    memory->give_back();
    return memory;
  };
  const auto take_again = [&](const Owner& memory, bool failed) {
    EXPECT_EQ(cuda.live().allocations, failed ? 0U : 1U);
    memory->take();
    EXPECT_EQ(cuda.live().allocations, 1U);
  };
  fail_each_call(
      given_back, [](const Owner& memory) { memory->take(); }, take_again,
      [](const std::string& function, int call) {
        const bool restored = function == "cuCtxSetCurrent" && call == 2;
        return restored || function == "cuCtxGetCurrent" || function == "cuMemSetAccess";  // of peers
      });
  const auto memory = given_back();
  cuda.failing["cuMemSetAccess"] = CUDA_ERROR_ECC_UNCORRECTABLE;
  EXPECT_TRUE(throws(ErrorKind::device, {"allocating memory on cuda:0", "(214)"}, [&] { memory->take(); }));
  EXPECT_TRUE(throws(ErrorKind::device, {"allocating memory on cuda:0", "(214)"}, [&] { stable(0, page); }));
  cuda.failing.clear();
  take_again(memory, true);
}

TEST_F(TheMemoryOfGpus, stays_where_it_cannot_be_given_back) {
  const auto filled = [&] {
    auto memory = stable(0, 4);
    copy_to_device(startup, 0, pointer(*memory), "abcd", 4);
    return memory;
  };
  const auto give_back = [&](const Owner& memory, bool failed) {
    EXPECT_EQ(read(*memory, 4), failed ? "abcd" : "");
    if (failed) {
      memory->take();  // it is there
      EXPECT_EQ(read(*memory, 4), "abcd");
      memory->give_back();
    }
    EXPECT_EQ(cuda.allocated(0), 0U);
  };
  fail_each_call(
      filled, [](const Owner& memory) { memory->give_back(); }, give_back,
      [](const std::string& function, int call) {
        const bool restored = function == "cuCtxSetCurrent" && call == 2;
        return restored || function == "cuCtxGetCurrent" || function == "cuMemRelease";
      });
}

TEST_F(TheMemoryOfGpus, of_stable_addresses_is_copied_from_by_the_devices_that_can_reach_it) {
  cuda.devices = 4;
  cuda.unreachable = {{2, 0}};
  const std::string text(page, 'x');
  const auto memory = stable(0, page);
  const auto copies_directly = [&](int device) {
    const CudaMemory to(startup, device, page, "it takes");
    cuda.indirect_copies = 0;
    copy_between_devices(startup, device, pointer(to), 0, pointer(*memory), page);
    EXPECT_EQ(read(to, page), text);
    return cuda.indirect_copies == 0;
  };
  for (int i = 0; i < 2; ++i) {  // also once it was taken again
    copy_to_device(startup, 0, pointer(*memory), text.data(), text.size());
    EXPECT_TRUE(copies_directly(1));
    EXPECT_FALSE(copies_directly(2));
    EXPECT_TRUE(copies_directly(3));
    memory->give_back();
    memory->take();
  }
  cuda.refused_peers = {{1, 0}};  // copies go by the host then, as for plain memory
  memory->give_back();
  memory->take();
  copy_to_device(startup, 0, pointer(*memory), text.data(), text.size());
  EXPECT_FALSE(copies_directly(1));
}

TEST_F(TheMemoryOfGpus, of_stable_addresses_is_left_to_the_parent_after_a_fork) {
  auto memory = stable(0, 4);
  auto given_back = stable(0, 4);
  copy_to_device(startup, 0, pointer(*memory), "abcd", 4);
  given_back->give_back();
  EXPECT_TRUE(in_forked_child([&] {
    cuda.calls.clear();
    const bool refused = throws(ErrorKind::forked, {}, [&] { memory->give_back(); }) &&
                         throws(ErrorKind::forked, {}, [&] { given_back->take(); });
    memory.reset();
    given_back.reset();
    return refused && cuda.calls.empty();
  }));
  EXPECT_EQ(read(*memory, 4), "abcd");
  given_back->take();
}

}  // namespace
}  // namespace ortmulti::tests
