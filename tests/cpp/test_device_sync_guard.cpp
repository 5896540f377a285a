#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <vector>

#include "core/cuda/device_sync_guard.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

using Work = DeviceSyncGuard::Work;

// Its own in each test, since what is under way is the process's.
Device gpu(int index) { return Device::cuda(1000 + index); }

bool ready(const std::future<void>& future) {
  return future.wait_for(std::chrono::milliseconds(0)) == std::future_status::ready;
}

TEST(DeviceSyncGuard, WorkOfOneKindGoesOnSideBySide) {
  for (const Work work : {Work::may_capture, Work::waits_for_device}) {
    const DeviceSyncGuard one(gpu(0), work);
    std::async(std::launch::async, [work] { const DeviceSyncGuard other(gpu(0), work); }).get();
  }
}

TEST(DeviceSyncGuard, DevicesAreApart) {
  const DeviceSyncGuard one(gpu(1), Work::may_capture);
  const DeviceSyncGuard other(gpu(2), Work::waits_for_device);
  const DeviceSyncGuard cpu(Device::cpu(), Work::may_capture);
  const DeviceSyncGuard also_cpu(Device::cpu(), Work::waits_for_device);
}

TEST(DeviceSyncGuard, WhoCameFirstGoesFirst) {
  auto first = std::make_unique<DeviceSyncGuard>(gpu(3), Work::may_capture);
  std::atomic<int> entered{0};
  std::promise<void> go_on;
  const std::shared_future<void> may_end = go_on.get_future().share();
  std::promise<void> inside;
  auto waits = std::async(std::launch::async, [&] {
    const DeviceSyncGuard guard(gpu(3), Work::waits_for_device);
    EXPECT_EQ(entered++, 0);
    inside.set_value();
    may_end.wait();
  });
  EXPECT_EQ(waits.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  // Though a run is under way, further ones wait behind the creation.
  auto later = std::async(std::launch::async, [&] {
    const DeviceSyncGuard guard(gpu(3), Work::may_capture);
    ++entered;
  });
  EXPECT_EQ(later.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  first.reset();
  inside.get_future().wait();
  EXPECT_FALSE(ready(later));
  EXPECT_EQ(entered, 1);
  go_on.set_value();
  waits.get();
  later.get();
  EXPECT_EQ(entered, 2);
}

TEST(DeviceSyncGuard, NeverBothKindsAtOnceAndWhatDoesBothAlone) {
  std::atomic<int> capturing{0};
  std::atomic<int> waiting{0};
  std::atomic<int> alone{0};
  in_threads(8, [&](int t) {
    for (int i = 0; i < 2000; ++i) {
      const Work work = std::array{Work::may_capture, Work::waits_for_device, Work::both}.at((t + i) % 5 % 3);
      const DeviceSyncGuard guard(gpu(4), work);
      std::atomic<int>& mine = *std::array{&capturing, &waiting, &alone}.at(static_cast<std::size_t>(work));
      ++mine;
      EXPECT_EQ((capturing != 0) + (waiting != 0) + alone, 1);
      --mine;
    }
  });
}

class Shapes : public RealSessions {};

TEST_F(Shapes, AreToldApart) {
  const auto shapes = [](const std::vector<std::vector<std::int64_t>>& all) {
    std::uint64_t hash = no_shapes;
    for (const auto& shape : all) {
      hash = add_shape(hash, tensor(shape));
    }
    return hash;
  };
  EXPECT_EQ(shapes({{1, 2}, {3}}), shapes({{1, 2}, {3}}));
  EXPECT_NE(shapes({{1, 2}, {3}}), shapes({{1}, {2, 3}}));
  EXPECT_NE(shapes({{1, 2}}), shapes({{2, 1}}));
  EXPECT_NE(shapes({{}}), shapes({}));
}

}  // namespace
}  // namespace ortmulti::tests
