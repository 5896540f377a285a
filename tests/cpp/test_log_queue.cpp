#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "core/base/log_queue.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

LogRecord record(const std::string& message, const std::string& logger = "") {
  return {2, "onnxruntime", logger, "file.cc:1", message};
}

TEST(LogQueue, KeepsOrderAndFields) {
  LogQueue queue;
  queue.push({3, "a category", "a logger", "a location", "first"});
  queue.push(record("second"));
  const auto [taken, dropped, closed] = queue.take();
  ASSERT_EQ(taken.size(), 2U);
  EXPECT_EQ(taken[0].severity, 3);
  EXPECT_EQ(taken[0].category, "a category");
  EXPECT_EQ(taken[0].logger, "a logger");
  EXPECT_EQ(taken[0].location, "a location");
  EXPECT_EQ(taken[0].message, "first");
  EXPECT_EQ(taken[1].message, "second");
  EXPECT_EQ(dropped, 0U);
  EXPECT_FALSE(closed);
  EXPECT_TRUE(queue.take().records.empty());
}

TEST(LogQueue, DropsTheOldestAndCountsThemOnce) {
  LogQueue queue(3);
  for (int i = 0; i < 10; ++i) {
    queue.push(record(std::to_string(i)));
  }
  const auto [taken, dropped, closed] = queue.take();
  ASSERT_EQ(taken.size(), 3U);
  EXPECT_EQ(taken[0].message, "7");
  EXPECT_EQ(taken[2].message, "9");
  EXPECT_EQ(dropped, 7U);
  queue.push(record("next"));
  const auto next = queue.take();
  EXPECT_EQ(next.records.size(), 1U);
  EXPECT_EQ(next.dropped, 0U);
}

TEST(LogQueue, WaitingTakesNothing) {
  LogQueue queue;
  auto waiting = std::async(std::launch::async, [&queue] { queue.wait(hours(1)); });
  queue.push(record("hello"));
  waiting.get();
  queue.wait(hours(1));
  EXPECT_EQ(queue.take().records.size(), 1U);
  queue.wait(milliseconds(0));
}

TEST(LogQueue, ClosingWakesTheReaderForGood) {
  LogQueue queue;
  auto reader = std::async(std::launch::async, [&queue] { queue.wait(hours(1)); });
  queue.close();
  reader.get();
  EXPECT_TRUE(queue.take().closed);
  queue.wait(hours(1));
  queue.push(record("after"));
  queue.wait(hours(1));
  EXPECT_EQ(queue.take().records.size(), 1U);
}

TEST(LogQueue, LosesNothingUncountedBetweenWritersAndTheReader) {
  constexpr int writers = 6;
  constexpr int records_each = 2000;
  LogQueue queue(64);
  auto writing = std::async(std::launch::async, [&] {
    in_threads(writers, [&](int writer) {
      for (int i = 0; i < records_each; ++i) {
        queue.push(record(std::to_string(i), std::to_string(writer)));
      }
    });
  });
  std::uint64_t taken = 0;
  std::uint64_t dropped = 0;
  std::vector<int> last(writers, -1);
  while (taken + dropped < static_cast<std::uint64_t>(writers) * records_each) {
    queue.wait(hours(1));
    const LogQueue::Taken now = queue.take();
    for (const LogRecord& entry : now.records) {
      int& before = last[static_cast<std::size_t>(std::stoi(entry.logger))];
      EXPECT_LT(before, std::stoi(entry.message));  // each writer's own order
      before = std::stoi(entry.message);
      ++taken;
    }
    dropped += now.dropped;
  }
  writing.get();
  EXPECT_EQ(taken + dropped, static_cast<std::uint64_t>(writers) * records_each);
  for (const int message : last) {
    EXPECT_LE(message, records_each - 1);
  }
}

}  // namespace
}  // namespace ortmulti::tests
