#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "core/cuda/memory.hpp"
#include "core/pool/gpu_session.hpp"
#include "fake_cuda.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

class TheMemoryOfGpus : public testing::Test {
 protected:
  void TearDown() override { EXPECT_TRUE(cuda.misuses().empty()) << cuda.misuses().front(); }

  std::string read(const CudaMemory& memory, std::size_t size) const { return cuda.read(memory.address(), size); }
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's addresses are numbers
  static void* pointer(const CudaMemory& memory) { return reinterpret_cast<void*>(memory.address()); }

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
  EXPECT_TRUE(throws(ErrorKind::out_of_memory, {"it takes 0 MB on cuda:0", "(2)"},
                     [&] { const CudaMemory memory(startup, 0, 8, "it takes"); }));
  EXPECT_TRUE(cuda.live().nothing());
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

}  // namespace
}  // namespace ortmulti::tests
