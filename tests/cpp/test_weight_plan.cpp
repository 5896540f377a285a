#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/weights/plan.hpp"
#include "loading.hpp"

namespace ortmulti::tests {
namespace {

TEST(WeightPlan, GivesEveryWeightItsPlace) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    WeightFiles files(seed);
    files.add_random(1 + seed % 3, 60);
    const WeightPlan plan = plan_weights(files.list);
    // Which byte of which file each byte of the slab is.
    std::vector<std::pair<std::size_t, std::uint64_t>> slab(plan.slab_bytes, {99, 0});
    std::uint64_t end = 0;
    for (const WeightPiece& run : plan.runs) {
      ASSERT_GE(run.slab_offset, end);
      end = run.slab_offset + run.length;
      ASSERT_LE(end, plan.slab_bytes);
      for (std::uint64_t i = 0; i < run.length; ++i) {
        slab[run.slab_offset + i] = {run.source, run.offset + i};
      }
    }
    for (std::size_t i = 0; i < plan.list.weights.size(); ++i) {
      const Weight& weight = plan.list.weights[i];
      EXPECT_EQ(plan.slab_offsets[i] % WeightPlan::alignment, 0U);
      ASSERT_LE(plan.slab_offsets[i] + weight.length, plan.slab_bytes);
      for (std::uint64_t byte = 0; byte < weight.length; ++byte) {
        ASSERT_EQ(slab[plan.slab_offsets[i] + byte], std::pair(weight.source, weight.offset + byte)) << i;
      }
    }
  }
}

TEST(WeightPlan, JobsAreAllOfItInOrder) {
  WeightFiles files(7);
  files.add_random(3, 80);
  const WeightPlan plan = plan_weights(files.list);
  for (const std::uint64_t size : {1U, 100U, 4096U, 1U << 30U}) {
    const std::vector<WeightJob> jobs = plan.jobs(size);
    std::size_t run = 0;
    std::uint64_t done = 0;  // of the run
    std::uint64_t all = 0;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      EXPECT_EQ(jobs[i].bytes, i + 1 < jobs.size() ? size : jobs[i].bytes);
      EXPECT_LE(jobs[i].bytes, size);
      std::uint64_t bytes = 0;
      for (const WeightPiece& piece : jobs[i].pieces) {
        ASSERT_LT(run, plan.runs.size());
        EXPECT_EQ(piece.source, plan.runs[run].source);
        EXPECT_EQ(piece.offset, plan.runs[run].offset + done);
        EXPECT_EQ(piece.slab_offset, plan.runs[run].slab_offset + done);
        bytes += piece.length;
        done += piece.length;
        if (done == plan.runs[run].length) {
          ++run;
          done = 0;
        }
      }
      EXPECT_EQ(bytes, jobs[i].bytes);
      EXPECT_EQ(jobs[i].slab_end, jobs[i].pieces.back().slab_offset + jobs[i].pieces.back().length);
      all += bytes;
    }
    EXPECT_EQ(run, plan.runs.size());
    EXPECT_EQ(all, plan.file_bytes());
  }
}

TEST(WeightPlan, WhatLiesTogetherIsReadTogether) {
  WeightFiles files;
  files.add_even(100, 1024);
  EXPECT_EQ(plan_weights(files.list).runs.size(), 1U);
  EXPECT_EQ(plan_weights(files.list).slab_bytes, 100U * 1024);
}

TEST(WeightPlan, TheSameBytesAreStoredOnce) {
  WeightFiles files;
  files.add_even(1, 5000);
  files.add(0, 0, 5000);
  files.add(0, 0, 5000);
  const WeightPlan plan = plan_weights(files.list);
  EXPECT_EQ(plan.slab_bytes, 5000U);
  EXPECT_EQ(plan.file_bytes(), 5000U);
  EXPECT_EQ(plan.slab_offsets, (std::vector<std::uint64_t>{0, 0, 0}));
}

TEST(WeightPlan, SumsBeyond64BitsAreOutOfMemory) {
  constexpr std::uint64_t large = std::uint64_t{1} << 60U;
  const auto plan = [](const std::vector<std::pair<std::uint64_t, std::uint64_t>>& places) {
    WeightList list;
    list.sources.push_back(memory_source("data", nullptr, 0));
    for (const auto& [offset, length] : places) {
      list.weights.push_back({"w", 2, {}, 0, offset, length});
    }
    return plan_weights(list);
  };
  std::vector<std::pair<std::uint64_t, std::uint64_t>> overlapping;
  overlapping.reserve(15);
  for (std::uint64_t i = 0; i < 15; ++i) {
    overlapping.emplace_back(i * 4096, large);
  }
  EXPECT_EQ(plan(overlapping).file_bytes(), 15 * large);
  overlapping.emplace_back(15 * 4096, large);
  const auto cannot = [&](const auto& places) {
    return throws(ErrorKind::out_of_memory, {"weights", "18446744073709551615 bytes"}, [&] { plan(places); });
  };
  EXPECT_TRUE(cannot(overlapping));
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  EXPECT_TRUE(cannot(std::vector{std::pair{most - 100, std::uint64_t{200}}}));                   // in the file
  EXPECT_TRUE(cannot(std::vector{std::pair{std::uint64_t{0}, most}, {std::uint64_t{1}, 1}}));    // by the alignment
  EXPECT_TRUE(cannot(std::vector{std::pair{std::uint64_t{0}, most - 255}, {most - 255, 256}}));  // by what follows
}

TEST(WeightPlan, OfNothingIsEmpty) {
  const WeightPlan plan = plan_weights({});
  EXPECT_EQ(plan.slab_bytes, 0U);
  EXPECT_EQ(plan.file_bytes(), 0U);
  EXPECT_TRUE(plan.jobs(100).empty());
}

}  // namespace
}  // namespace ortmulti::tests
