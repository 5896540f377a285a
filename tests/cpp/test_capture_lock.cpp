#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "core/cuda/capture_lock.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

using namespace std::chrono_literals;

// Runs in a thread, and tells when it has begun.
template <typename Function>
std::future<void> in_thread(Function function) {
  std::promise<void> begun;
  const auto waits = begun.get_future();
  auto result = std::async(std::launch::async, [begun = std::move(begun), function = std::move(function)]() mutable {
    begun.set_value();
    function();
  });
  waits.wait();
  return result;
}

bool still_waits(const std::future<void>& future) { return future.wait_for(50ms) == std::future_status::timeout; }

TEST(GraphCapture, UsesGoOnSideBySide) {
  const CaptureLock::Shared use;
  in_thread([] { const CaptureLock::Shared other; }).get();
  in_thread([] { const CaptureLock::Shared other(CaptureLock::Use::lasting); }).get();
}

TEST(GraphCapture, ACaptureKeepsOtherThreadsWaiting) {
  auto sole = CaptureLock::Exclusive::try_lock();
  ASSERT_TRUE(sole);
  {
    const CaptureLock::Shared within;
  }  // of the same thread
  const auto brief = in_thread([] { const CaptureLock::Shared use; });
  const auto lasting = in_thread([] { const CaptureLock::Shared use(Device::cuda(1), CaptureLock::Use::lasting); });
  in_thread([] { const CaptureLock::Shared cpu(Device::cpu()); }).get();
  EXPECT_TRUE(still_waits(brief));
  EXPECT_TRUE(still_waits(lasting));
  sole.reset();
  brief.wait();
  lasting.wait();
}

TEST(GraphCapture, NoCaptureBesideALastingUseOrWithinOnesOwn) {
  {
    const CaptureLock::Shared use;
    EXPECT_FALSE(CaptureLock::Exclusive::try_lock());
  }
  std::promise<void> ends;
  auto ended = ends.get_future();
  const auto creation = in_thread([&ended] {
    const CaptureLock::Shared use(CaptureLock::Use::lasting);
    ended.wait();
  });
  // The thread has begun, and is soon within its use.
  while (CaptureLock::Exclusive::try_lock()) {
    std::this_thread::yield();
  }
  ends.set_value();
  creation.wait();
  EXPECT_TRUE(CaptureLock::Exclusive::try_lock());
}

TEST(GraphCapture, NothingIsUnderWayDuringACapture) {
  std::atomic<int> under_way{0};
  std::atomic<int> captures{0};
  std::atomic<int> seen{0};
  in_threads(6, [&](int thread) {
    for (int i = 0; thread < 4 && i < 2000; ++i) {
      const CaptureLock::Shared use;
      ++under_way;
      const CaptureLock::Shared nested;
      std::this_thread::yield();
      --under_way;
    }
    for (int i = 0; thread >= 4 && i < 200; ++i) {
      const auto sole = CaptureLock::Exclusive::try_lock();
      ASSERT_TRUE(sole);
      seen += under_way.load() + captures.fetch_add(1);
      std::this_thread::yield();
      seen += under_way.load();
      captures.fetch_sub(1);
    }
  });
  EXPECT_EQ(seen, 0);
}

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
