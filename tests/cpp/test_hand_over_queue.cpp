#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <future>
#include <utility>
#include <vector>

#include "core/base/hand_over_queue.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using Queue = HandOverQueue<int>;

TEST(HandOverQueue, KeepsTheOrderOfThePushes) {
  Queue queue;
  queue.push(1);
  queue.push(2);
  const auto [taken, dropped, closed] = queue.take();
  EXPECT_EQ(taken, (std::deque<int>{1, 2}));
  EXPECT_EQ(dropped, 0U);
  EXPECT_FALSE(closed);
  EXPECT_TRUE(queue.take().items.empty());
}

TEST(HandOverQueue, DropsTheOldestAndCountsThemOnce) {
  Queue queue(3);
  for (int i = 0; i < 10; ++i) {
    queue.push(i);
  }
  const auto [taken, dropped, closed] = queue.take();
  EXPECT_EQ(taken, (std::deque<int>{7, 8, 9}));
  EXPECT_EQ(dropped, 7U);
  queue.push(10);
  const auto next = queue.take();
  EXPECT_EQ(next.items.size(), 1U);
  EXPECT_EQ(next.dropped, 0U);
}

TEST(HandOverQueue, WaitingTakesNothing) {
  Queue queue;
  auto waiting = std::async(std::launch::async, [&queue] { queue.wait(hours(1)); });
  auto without_end = std::async(std::launch::async, [&queue] { queue.wait(); });
  queue.push(1);
  queue.push(2);
  waiting.get();
  without_end.get();
  queue.wait(hours(1));
  queue.wait();
  EXPECT_EQ(queue.take().items.size(), 2U);
  queue.wait(milliseconds(0));
}

TEST(HandOverQueue, ClosingWakesTheReaderUntilItIsOpenedAgain) {
  Queue queue;
  auto reader = std::async(std::launch::async, [&queue] { queue.wait(hours(1)); });
  queue.close();
  reader.get();
  EXPECT_TRUE(queue.take().closed);
  queue.wait();
  queue.push(1);
  queue.wait();
  EXPECT_EQ(queue.take().items.size(), 1U) << "what comes after the end is not lost";
  queue.open();
  reader = std::async(std::launch::async, [&queue] { queue.wait(); });
  queue.push(2);
  reader.get();
  EXPECT_FALSE(queue.take().closed);
}

TEST(HandOverQueue, LosesNothingUncountedBetweenWritersAndTheReader) {
  constexpr int writers = 6;
  constexpr int items_each = 2000;
  HandOverQueue<std::pair<std::size_t, int>> queue(64);
  auto writing = std::async(std::launch::async, [&] {
    in_threads(writers, [&](int writer) {
      for (int i = 0; i < items_each; ++i) {
        queue.push({static_cast<std::size_t>(writer), i});
      }
    });
  });
  std::uint64_t taken = 0;
  std::uint64_t dropped = 0;
  std::vector<int> last(writers, -1);
  while (taken + dropped < static_cast<std::uint64_t>(writers) * items_each) {
    queue.wait();
    const auto now = queue.take();
    for (const auto& [writer, number] : now.items) {
      EXPECT_LT(last[writer], number);  // each writer's own order
      last[writer] = number;
      ++taken;
    }
    dropped += now.dropped;
  }
  writing.get();
  EXPECT_EQ(taken + dropped, static_cast<std::uint64_t>(writers) * items_each);
}

}  // namespace
}  // namespace ortmulti::tests
