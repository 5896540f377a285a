#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "core/cuda/capture_lock.hpp"
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

TEST(DeviceSyncGuard, NeverBothKindsAtOnce) {
  std::atomic<int> capturing{0};
  std::atomic<int> waiting{0};
  std::vector<std::thread> threads;
  threads.reserve(8);
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        const bool capture = (t + i) % 3 != 0;
        const DeviceSyncGuard guard(gpu(4), capture ? Work::may_capture : Work::waits_for_device);
        std::atomic<int>& mine = capture ? capturing : waiting;
        const std::atomic<int>& others = capture ? waiting : capturing;
        ++mine;
        EXPECT_EQ(others, 0);
        --mine;
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

TEST(DeviceSyncGuard, ShapesAreToldApart) {
  if (!missing_environment().empty()) {
    GTEST_SKIP();
  }
  runtime();
  const auto shapes = [](const std::vector<std::vector<std::int64_t>>& all) {
    std::uint64_t hash = no_shapes;
    const Ort::AllocatorWithDefaultOptions allocator;
    for (const auto& shape : all) {
      hash = add_shape(hash, Ort::Value::CreateTensor<float>(allocator, shape.data(), shape.size()));
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
