#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>

#include "core/policy/rows_per_run.hpp"

namespace ortmulti::tests {
namespace {

using std::chrono::microseconds;

class RowsOfARun : public testing::Test {
 protected:
  // Plays runs as large as they may be of 16 rows that wait, whose times are these. Returns the size of the last one.
  std::size_t play(int runs, const std::function<microseconds(std::size_t)>& time, std::size_t wait = 16) {
    std::size_t size = 0;
    for (int i = 0; i < runs; ++i) {
      size = std::min(rows.choose(16), wait);
      rows.record(size, time(size));
      most_seen += size == 16 ? 1 : 0;
      ++seen;
    }
    return size;
  }
  static microseconds of_each(std::size_t size) { return microseconds(20'000) * size; }
  static microseconds of_all(std::size_t size) { return microseconds(20'000) + microseconds(100) * size; }

  RowsPerRun rows;
  int most_seen = 0;
  int seen = 0;
};

TEST_F(RowsOfARun, AreThoseThatWereAskedForBeforeAnythingIsMeasured) { EXPECT_EQ(rows.choose(12), 12U); }

TEST_F(RowsOfARun, AreOneWhereARowTakesAsLongInAnyRun) {
  EXPECT_EQ(play(60, of_each), 1U);
  EXPECT_NE(rows.why().find("a row takes 20.1 ms in runs of 1, 20 ms in runs of 2"), std::string::npos) << rows.why();
}

TEST_F(RowsOfARun, AreAllWhereMoreAreCheaper) {
  play(2000, of_all);
  EXPECT_GE(most_seen, seen * 98 / 100);  // others are tried now and then
}

TEST_F(RowsOfARun, AreAllWhereARunTakesNoLongerThanTheHandOver) {
  play(2000, [](std::size_t size) { return microseconds(2) * size; });
  EXPECT_EQ(most_seen, seen);  // fewer could not be cheaper, and are not tried
}

TEST_F(RowsOfARun, AreAsManyAsStillGain) {
  const auto up_to_four = [](std::size_t size) { return microseconds(10'000) * ((size + 3) / 4); };
  EXPECT_EQ(play(100, up_to_four), 4U);
}

// What a run leaves of a burst is the next one, so that no size comes twice in a row.
TEST_F(RowsOfARun, AreAllOfABurstWhereMoreAreCheaper) {
  int parted = 0;
  for (int burst = 0; burst < 400; ++burst) {
    for (std::size_t left = 10; left > 0;) {
      const std::size_t size = std::min(rows.choose(16), left);
      parted += left == 10 && size < 10 ? 1 : 0;
      rows.record(size, of_all(size));
      left -= size;
    }
  }
  EXPECT_LT(parted, 20) << rows.why();
}

TEST_F(RowsOfARun, ChangeWithTheMachine) {
  EXPECT_EQ(play(60, of_each), 1U);
  play(3000, of_all);
  EXPECT_EQ(play(100, of_all), 16U);
  play(3000, of_each);
  EXPECT_EQ(play(20, of_each), 1U);
}

TEST_F(RowsOfARun, GrowWithTheLoad) {
  play(100, of_all, 1);
  EXPECT_EQ(rows.choose(16), 16U);
}

}  // namespace
}  // namespace ortmulti::tests
