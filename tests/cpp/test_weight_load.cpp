#include <gtest/gtest.h>

#include <chrono>
#include <future>

#include "core/base/error.hpp"
#include "core/weights/weight_load.hpp"
#include "failing_threads.hpp"
#include "loading.hpp"

namespace ortmulti::tests {
namespace {

constexpr std::chrono::seconds long_enough{60};

class WeightLoads : public Loading {
 protected:
  WeightLoads() { files.add_even(40, 5000); }
  SharedWeights weights() const { return {files.plan(), nullptr, {2, 4096, 2}, true}; }
  WeightFiles files;
};

TEST_F(WeightLoads, FillEveryDevice) {
  WeightLoad load(*startup, weights(), {2, 0, 1});
  EXPECT_TRUE(load.wait(long_enough));
  const Stores stores = load.take();
  ASSERT_EQ(stores.size(), 3U);
  EXPECT_EQ(stores[0]->device(), Device::cuda(2));
  EXPECT_TRUE(right(files, stores));
}

// PyTorch's are of that mode, and would fail, too.
TEST_F(WeightLoads, AreNotDisturbedByAnotherLibrarysCapture) {
  fake.captured_by_others = true;
  {
    WeightLoad load(*startup, weights(), {0, 1});
    EXPECT_TRUE(load.wait(long_enough));
    EXPECT_TRUE(right(files, load.take()));
  }
  EXPECT_EQ(fake.failed_beside_captures, 0);
  fake.captured_by_others = false;
  EXPECT_TRUE(FakeCuda::minds_captures()) << "of the caller's thread";
}

TEST_F(WeightLoads, EndSoonWhenNobodyWantsThem) {
  std::promise<void> copying;
  fake.on_copy = [&, first = true](const FakeCuda::Copy& copy) mutable {
    if (copy.number == 3 && first) {
      first = false;
      copying.set_value();
    }
    return CUDA_SUCCESS;
  };
  WeightFiles many;
  many.add_even(2000, 5000);
  {
    const WeightLoad load(*startup, {many.plan(), nullptr, {1, 4096, 2}, true}, {0});
    EXPECT_EQ(copying.get_future().wait_for(long_enough), std::future_status::ready);
  }
}

TEST_F(WeightLoads, TheFirstErrorIsThrown) {
  fake.on_copy = [](const FakeCuda::Copy& /*copy*/) { return CUDA_ERROR_ILLEGAL_ADDRESS; };
  {
    WeightLoad load(*startup, weights(), {0, 1});
    EXPECT_TRUE(load.wait(long_enough));
    EXPECT_THROW(load.take(), Error);
  }
}

TEST_F(WeightLoads, NeedEachDeviceOnce) {
  EXPECT_TRUE(
      throws(ErrorKind::invalid_argument, {"there is no device"}, [&] { WeightLoad(*startup, weights(), {}); }));
  EXPECT_TRUE(
      throws(ErrorKind::invalid_argument, {"named twice"}, [&] { WeightLoad(*startup, weights(), {0, 1, 0}); }));
}

TEST_F(WeightLoads, WithoutThreadsAreAnError) {
  startup->make_current(0);  // the contexts are there: they need no thread
  startup->make_current(1);
  EXPECT_TRUE(throws(ErrorKind::runtime_exception, {"cannot start a thread for each of 2 devices"}, [&] {
    const NoThreads none;
    WeightLoad(*startup, weights(), {0, 1});
  }));
}

}  // namespace
}  // namespace ortmulti::tests
