#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <thread>
#include <vector>

#include "core/cuda/capture_lock.hpp"

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
  std::vector<std::future<void>> threads;
  threads.reserve(6);
  for (int thread = 0; thread < 4; ++thread) {
    threads.push_back(in_thread([&] {
      for (int i = 0; i < 2000; ++i) {
        const CaptureLock::Shared use;
        ++under_way;
        const CaptureLock::Shared nested;
        std::this_thread::yield();
        --under_way;
      }
    }));
  }
  for (int thread = 0; thread < 2; ++thread) {
    threads.push_back(in_thread([&] {
      for (int i = 0; i < 200; ++i) {
        const auto sole = CaptureLock::Exclusive::try_lock();
        ASSERT_TRUE(sole);
        seen += under_way.load() + captures.fetch_add(1);
        std::this_thread::yield();
        seen += under_way.load();
        captures.fetch_sub(1);
      }
    }));
  }
  for (auto& thread : threads) {
    thread.get();
  }
  EXPECT_EQ(seen, 0);
}

}  // namespace
}  // namespace ortmulti::tests
