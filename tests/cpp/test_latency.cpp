#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "core/policy/recent_average.hpp"
#include "core/pool/latency.hpp"

namespace ortmulti::tests {
namespace {

TEST(RecentAverage, IsTheMeanAtFirstAndFollowsThen) {
  using std::chrono::milliseconds;
  RecentAverage average;
  EXPECT_EQ(average.value().count(), 0);
  average.record(milliseconds(90));  // a first run is often slow
  for (int i = 0; i < 8; ++i) {
    average.record(milliseconds(9));
  }
  EXPECT_EQ(average.count(), 9U);
  EXPECT_NEAR(static_cast<double>(average.value().count()), 18e6, 10);
  for (int i = 0; i < 1000; ++i) {
    average.record(milliseconds(1));
  }
  EXPECT_NEAR(static_cast<double>(average.value().count()), 1e6, 20);
}

TEST(LatencyHistogram, IsZeroWhenEmpty) {
  const LatencyHistogram histogram;
  EXPECT_EQ(histogram.count(), 0U);
  EXPECT_EQ(histogram.quantile_ns(0.5), 0);
  EXPECT_EQ(histogram.max_ns(), 0);
}

TEST(LatencyHistogram, QuantilesAreRightToThreePercent) {
  std::mt19937_64 random(7);  // NOLINT(bugprone-random-generator-seed): the same values in every run
  std::lognormal_distribution<double> times(13, 3);  // from a nanosecond to minutes
  LatencyHistogram histogram;
  std::vector<std::int64_t> all;
  for (int i = 0; i < 20000; ++i) {
    all.push_back(static_cast<std::int64_t>(times(random)));
    histogram.record(all.back());
  }
  std::ranges::sort(all);
  for (const double q : {0.0, 0.001, 0.01, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0}) {
    const auto rank =
        std::max<std::size_t>(1, static_cast<std::size_t>(std::ceil(q * static_cast<double>(all.size()))));
    const auto exact = static_cast<double>(all[rank - 1]);
    const auto found = static_cast<double>(histogram.quantile_ns(q));
    EXPECT_GE(found, exact) << q;
    EXPECT_LE(found, exact * 1.032 + 1) << q;
  }
  EXPECT_EQ(histogram.max_ns(), all.back());
  EXPECT_EQ(histogram.quantile_ns(1), all.back());
}

TEST(LatencyHistogram, KeepsWhatLiesOutsideAtItsEnds) {
  LatencyHistogram histogram;
  histogram.record(-5);
  histogram.record(std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(histogram.quantile_ns(0.5), 0);
  EXPECT_GT(histogram.max_ns(), std::int64_t{9} * 3600 * 1000000000);
  EXPECT_EQ(histogram.count(), 2U);
}

TEST(LatencyHistogram, CountsUpToBoundsAreRightToThreePercent) {
  LatencyHistogram histogram;
  const std::vector<std::int64_t> bounds{10'000, 25'000, 1'000'000, 10'000'000'000,
                                         std::int64_t{10} * 3600 * 1'000'000'000};
  for (const std::int64_t bound : bounds) {
    histogram.record(bound - bound / 32);
    histogram.record(bound + 1);
  }
  const auto counts = histogram.counts_up_to(bounds);
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
    EXPECT_EQ(counts[i], 2 * i + 1) << bounds[i];
  }
  EXPECT_EQ(counts.back(), 2 * bounds.size()) << "longer ones count as 9 hours";
  EXPECT_EQ(histogram.count(), 2 * bounds.size());
}

TEST(SizeHistogram, CountsUpToPowersOfTwo) {
  SizeHistogram histogram;
  for (const std::size_t size : {1U, 2U, 3U, 4U, 5U, 64U, 65U, 1024U, 1025U, 100000U}) {
    histogram.record(size);
  }
  EXPECT_EQ(histogram.counts_up_to_bounds(),
            (std::array<std::uint64_t, SizeHistogram::bounds>{1, 2, 4, 5, 5, 5, 6, 7, 7, 7, 8}));
  EXPECT_EQ(histogram.count(), 10U);
  EXPECT_EQ(histogram.sum(), 102193U);
  SizeHistogram other;
  other.record(3);
  histogram += other;
  EXPECT_EQ(histogram.counts_up_to_bounds()[2], 5U);
  EXPECT_EQ(histogram.count(), 11U);
  EXPECT_EQ(histogram.sum(), 102196U);
}

TEST(LatencyHistogram, MergesAsIfRecordedTogether) {
  LatencyHistogram one;
  LatencyHistogram other;
  LatencyHistogram both;
  for (std::int64_t i = 0; i < 1000; ++i) {
    (i % 3 == 0 ? one : other).record(i * i);
    both.record(i * i);
  }
  one += other;
  EXPECT_EQ(one.count(), both.count());
  EXPECT_EQ(one.sum_ns(), both.sum_ns());
  EXPECT_EQ(one.max_ns(), both.max_ns());
  EXPECT_EQ(one.quantile_ns(0.9), both.quantile_ns(0.9));
}

}  // namespace
}  // namespace ortmulti::tests
