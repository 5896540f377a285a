#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

#include "core/policy/held_rows.hpp"

namespace ortmulti::tests {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// A session with one plan: a run of another size than the one before takes longer.
class HeldRowsTest : public testing::Test {
 protected:
  // Returns the rows that the run had.
  std::size_t run(std::size_t rows, bool more = false, bool by_graph = false) {
    rows = std::min(held.choose(most), rows);
    const std::size_t padded = held.padded(rows);
    const nanoseconds time = padded == planned || by_graph ? same : change;
    planned = by_graph ? planned : padded;
    held.record({.rows = rows, .padded = padded, .more = more, .by_graph = by_graph, .time = time}, most);
    plans += time == change ? 1 : 0;
    return padded;
  }
  void hold(std::size_t rows) {
    for (std::size_t i = 0; i < 12; ++i) {
      run(rows - i % 2);
    }
    ASSERT_TRUE(held.holds());
  }

  HeldRows held;
  std::size_t most = 32;
  std::size_t planned = 0;
  int plans = 0;
  nanoseconds same = milliseconds(5);
  nanoseconds change = milliseconds(1600);
};

TEST_F(HeldRowsTest, RunsAreAnySizeWhereThatCostsNothing) {
  change = milliseconds(6);
  for (std::size_t i = 1; i <= 100; ++i) {
    EXPECT_EQ(run(i % 32 + 1), i % 32 + 1);
  }
  EXPECT_EQ(held.why(), "");
}

TEST_F(HeldRowsTest, RunsHaveOneSizeWhereAnotherIsDear) {
  for (std::size_t i = 0; i < 40; ++i) {
    run(17 + i % 8);
  }
  EXPECT_EQ(run(18), 32U);
  EXPECT_LE(plans, 5) << "the first run, three of other sizes, and the one of the size that is held";
  EXPECT_EQ(held.why(), "runs are padded to 32 rows: one of another size took 1.6e+03 ms, not 5");
}

// Several runs are under way, of a load that fills none of them, and wait for each other's plans.
TEST_F(HeldRowsTest, RunsUnderWayAtTheSameTimeSoonHaveOneSize) {
  for (const std::size_t under_way : {std::size_t{3}, std::size_t{9}}) {
    held = {};
    struct Under {
      std::size_t rows;
      std::size_t padded;
      nanoseconds began;
      nanoseconds ends;
    };
    std::vector<Under> runs;
    std::size_t of_plan = 0;
    std::size_t number = 0;
    nanoseconds now{0};
    nanoseconds free{0};  // when the last plan is made
    const auto begin = [&] {
      const std::size_t rows = std::min(held.choose(most), 14 + number++ * 7 % 9);
      const std::size_t padded = held.padded(rows);
      free = std::max(free, now) + (padded == of_plan ? nanoseconds{0} : change);
      of_plan = padded;
      runs.push_back({rows, padded, now, free + same});
    };
    while (runs.size() < under_way) {
      begin();
    }
    while (now < std::chrono::seconds(60)) {
      const auto next = std::ranges::min_element(runs, {}, &Under::ends);
      const Under ended = *next;
      runs.erase(next);
      now = ended.ends;
      held.record(
          {.rows = ended.rows, .padded = ended.padded, .more = true, .by_graph = false, .time = now - ended.began},
          most);
      begin();
    }
    EXPECT_TRUE(held.holds()) << under_way;
    EXPECT_GT(number, 1000U) << "it takes no more than some plans until all have one size: " << under_way;
  }
}

TEST_F(HeldRowsTest, ASizeThatIsNewButOnceIsNoReason) {
  for (std::size_t rows = 1; rows <= 3; ++rows) {
    run(rows);  // kernels are loaded
    change = milliseconds(rows == 1 ? 300 : 6);
  }
  run(4);
  EXPECT_FALSE(held.holds());
}

TEST_F(HeldRowsTest, ModelsWhoseRunsAreLongInAnySizeAreLeftAlone) {
  same = change;
  for (std::size_t i = 0; i < 100; ++i) {
    run(17 + i % 8);
  }
  EXPECT_EQ(run(18), 18U) << held.why();
}

TEST_F(HeldRowsTest, RunsOfGraphsSayNothing) {
  run(8);
  for (std::size_t i = 0; i < 6; ++i) {
    run(5 + i % 2);
    run(8, false, true);
  }
  EXPECT_TRUE(held.holds());
}

TEST_F(HeldRowsTest, ItIsProvenAgain) {
  hold(32);
  const int before = plans;
  for (std::size_t i = 0; i < 3000; ++i) {
    run(20 + i % 3);
  }
  EXPECT_EQ(plans, before + 2) << "one run of another size, and the next one";
  EXPECT_EQ(run(20), 32U);
  change = same;  // it was something else
  for (std::size_t i = 0; i < 5000; ++i) {
    run(20 + i % 3);
  }
  EXPECT_EQ(run(20), 20U);
}

TEST_F(HeldRowsTest, MoreRowsAreHeldWhereMoreWait) {
  hold(4);
  for (const std::size_t rows : {4U, 8U, 16U, 32U}) {
    ASSERT_EQ(run(32, true), rows);
    for (std::size_t i = 1; i < 32; ++i) {
      run(32, true);
    }
  }
  EXPECT_EQ(held.choose(most), 32U);
}

TEST_F(HeldRowsTest, FullRunsBehindWhichNobodyWaitsAreEnough) {
  hold(4);
  for (std::size_t i = 0; i < 1000; ++i) {
    run(4);
  }
  EXPECT_EQ(run(4), 4U);
}

TEST_F(HeldRowsTest, FewerRowsAreHeldAfterAWhileOfFew) {
  hold(32);
  for (std::size_t i = 0; i < 400; ++i) {
    run(i % 4 + 1);
  }
  EXPECT_EQ(run(1), 32U) << "not after one pause";
  for (std::size_t i = 0; i < 700; ++i) {
    run(i % 4 + 1);
  }
  EXPECT_EQ(run(1), 4U);
}

TEST_F(HeldRowsTest, ARequestOfMoreRowsThanAreJoinedSaysNothing) {
  hold(32);
  held.record({.rows = 1000, .padded = 1000, .more = false, .by_graph = false, .time = change}, most);
  EXPECT_EQ(run(3), 32U);
}

TEST_F(HeldRowsTest, NothingIsHeldOnceMemoryIsShort) {
  hold(4);
  held.give_up();
  EXPECT_EQ(run(3), 3U);
  EXPECT_FALSE(held.holds());
}

TEST_F(HeldRowsTest, ARequestOfMoreRowsTakesThemAtOnce) {
  hold(4);
  held.record({.rows = 12, .padded = 12, .more = false, .by_graph = false, .time = change}, most);
  EXPECT_EQ(run(3), 16U);
}

TEST_F(HeldRowsTest, NoMoreThanWereAskedFor) {
  most = 24;
  hold(20);
  EXPECT_EQ(run(20), 24U);
}

}  // namespace
}  // namespace ortmulti::tests
