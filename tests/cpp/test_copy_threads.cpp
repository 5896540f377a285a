#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/cuda/copies.hpp"
#include "failing_threads.hpp"

namespace ortmulti::tests {
namespace {

TEST(CopyThreads, EveryPieceIsTakenOnceByPartsOfDifferentNumbers) {
  for (int round = 0; round < 200; ++round) {
    std::vector<std::atomic<int>> taken(500);
    std::vector<std::atomic<int>> numbers(8);
    std::atomic<std::size_t> next{0};
    CopyThreads::instance().share(3, [&](int number) {
      ++numbers.at(static_cast<std::size_t>(number));
      for (std::size_t piece = next++; piece < taken.size(); piece = next++) {
        ++taken[piece];
      }
    });
    for (const auto& count : taken) {
      ASSERT_EQ(count, 1);
    }
    EXPECT_EQ(numbers[0], 1);
    for (const auto& count : numbers) {
      EXPECT_LE(count, 1);
    }
  }
}

// ctest runs each test in a process of its own: the helpers are the process's.
TEST(CopyThreads, WithoutThreadsTheCallerDoesItAllAndTheNextCallTriesAgain) {
  if (CopyThreads::count() == 0) {
    GTEST_SKIP() << "one core";
  }
  {
    const NoThreads none;
    CopyThreads::instance().share(3, [](int number) { EXPECT_EQ(number, 0); });
  }
  std::promise<void> helped;
  CopyThreads::instance().share(1, [&](int number) {
    if (number == 0) {
      EXPECT_EQ(helped.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
    } else {
      helped.set_value();
    }
  });
}

TEST(CopyThreads, SeveralThreadsShareThem) {
  std::vector<std::future<int>> sums;
  sums.reserve(6);
  for (int thread = 0; thread < 6; ++thread) {
    sums.push_back(std::async(std::launch::async, [] {
      int wrong = 0;
      for (int round = 0; round < 100; ++round) {
        std::atomic<int> next{0};
        std::atomic<int> sum{0};
        CopyThreads::instance().share(3, [&](int) {
          for (int piece = next++; piece < 50; piece = next++) {
            sum += piece;
          }
        });
        wrong += sum == 49 * 50 / 2 ? 0 : 1;
      }
      return wrong;
    }));
  }
  for (auto& sum : sums) {
    EXPECT_EQ(sum.get(), 0);
  }
}

TEST(CopyThreads, GiveWhatAPartThrowsWhenAllHaveEnded) {
  std::atomic<int> inside{0};
  EXPECT_THROW(CopyThreads::instance().share(3,
                                             [&](int) {
                                               ++inside;
                                               std::this_thread::yield();
                                               --inside;
                                               throw std::runtime_error("no");
                                             }),
               std::runtime_error);
  EXPECT_EQ(inside, 0);
}

}  // namespace
}  // namespace ortmulti::tests
