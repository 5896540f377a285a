#include <gtest/gtest.h>

#include <future>
#include <thread>
#include <vector>

#include "core/ort/async.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

void call(const std::vector<Completions::Completion>& taken) {
  for (const auto& completion : taken) {
    completion();
  }
}

TEST(Completions, AreTakenTogetherInTheirOrder) {
  Completions queue;
  std::vector<int> called;
  for (int i = 0; i < 3; ++i) {
    queue.push([&called, i] { called.push_back(i); });
  }
  const auto taken = queue.take();
  EXPECT_EQ(taken.size(), 3U);
  EXPECT_TRUE(called.empty());
  call(taken);
  EXPECT_EQ(called, (std::vector<int>{0, 1, 2}));
}

TEST(Completions, WakeWhoWaits) {
  Completions queue;
  auto reader = std::async(std::launch::async, [&queue] { return queue.take().size(); });
  queue.push([] {});
  EXPECT_EQ(reader.get(), 1U);
}

TEST(Completions, EndWithCloseAfterTheLast) {
  Completions queue;
  queue.push([] {});
  queue.close();
  EXPECT_EQ(queue.take().size(), 1U);
  EXPECT_TRUE(queue.take().empty());
  queue.push([] {});
  EXPECT_EQ(queue.take().size(), 1U) << "what comes after the end is not lost";
  queue.open();
  auto reader = std::async(std::launch::async, [&queue] { return queue.take().size(); });
  queue.push([] {});
  EXPECT_EQ(reader.get(), 1U);
}

TEST(Completions, CloseWakesWhoWaits) {
  Completions queue;
  auto reader = std::async(std::launch::async, [&queue] { return queue.take().empty(); });
  queue.close();
  EXPECT_TRUE(reader.get());
}

TEST(Completions, OfManyThreadsAreAllTaken) {
  Completions queue;
  constexpr int threads = 4;
  constexpr int each = 1000;
  std::vector<std::thread> writers;
  writers.reserve(threads);
  int called = 0;  // by this thread alone
  for (int i = 0; i < threads; ++i) {
    writers.emplace_back([&] {
      for (int j = 0; j < each; ++j) {
        queue.push([&called] { ++called; });
      }
    });
  }
  while (called < threads * each) {
    call(queue.take());
  }
  for (std::thread& writer : writers) {
    writer.join();
  }
  EXPECT_EQ(called, threads * each);
}

TEST(Completions, OfAForkedChildAreItsOwn) {
  completions().push([] {});
  EXPECT_TRUE(in_forked_child([] {
    int called = 0;
    completions().push([&called] { ++called; });
    const auto taken = completions().take();
    call(taken);
    return taken.size() == 1 && called == 1;
  }));
  EXPECT_EQ(completions().take().size(), 1U);
}

}  // namespace
}  // namespace ortmulti::tests
