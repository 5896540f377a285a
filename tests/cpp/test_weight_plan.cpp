#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/cuda/memory.hpp"
#include "core/weights/plan.hpp"
#include "failing_threads.hpp"
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

// Bytes that can only be read, as over a network: byte i is i modulo 251.
class Distant : public Source {
 public:
  static constexpr std::uint64_t total = 1U << 20U;

  explicit Distant(Reading reading) : Source("distant", "distant", total), reading_(reading) {}

  Reading reading() const noexcept override { return reading_; }
  void interrupt() const noexcept override { ++interrupts; }

  // Ranges that wait until so many are under way.
  std::size_t together = 0;
  std::uint64_t fails_at = total;
  std::size_t stops_after = total;  // ranges
  mutable std::stop_source stop;
  mutable std::atomic<int> interrupts{0};
  mutable std::mutex mutex;
  mutable std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  mutable std::set<std::thread::id> threads;

 private:
  void read_range(void* target, std::uint64_t size, std::uint64_t offset) const override {
    {
      const std::lock_guard lock(mutex);
      ranges.emplace_back(offset, size);
      threads.insert(std::this_thread::get_id());
      if (ranges.size() == stops_after) {
        stop.request_stop();
      }
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    for (bool enough = false; !enough && std::chrono::steady_clock::now() < end; std::this_thread::yield()) {
      const std::lock_guard lock(mutex);
      enough = ranges.size() >= together;
    }
    if (offset >= fails_at) {
      throw Error(ErrorKind::weights, "the connection broke off");
    }
    auto* bytes = static_cast<unsigned char*>(target);
    for (std::uint64_t i = 0; i < size; ++i) {
      bytes[i] = static_cast<unsigned char>((offset + i) % 251);
    }
  }

  Reading reading_;
};

// Weights of several sizes, with gaps and out of order.
WeightList listed(const std::shared_ptr<const Source>& source) {
  WeightList list{{source}, {}, {}};
  for (const auto& [offset, length] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
           {500'000, 300'000}, {0, 100}, {200, 100'000}, {900'000, 64}, {900'064, 100'000}}) {
    list.weights.push_back({"w" + std::to_string(offset), 2, {static_cast<std::int64_t>(length)}, 0, offset, length});
  }
  return list;
}

bool right(const WeightList& list, const HostMemory& memory) {
  for (std::size_t i = 0; i < list.weights.size(); ++i) {
    for (std::uint64_t byte = 0; byte < list.weights[i].length; ++byte) {
      if (memory[i].get()[byte] != static_cast<unsigned char>((list.weights[i].offset + byte) % 251)) {
        return false;
      }
    }
  }
  return true;
}

TEST(InMemory, AsManyRangesAreReadAtOnceAsTheSourceSays) {
  const auto source = std::make_shared<Distant>(Reading{8, 32'768});
  source->together = 8;
  const WeightList list = listed(source);
  std::atomic<std::uint64_t> read{0};
  EXPECT_TRUE(right(list, in_memory(list, {}, &read)));
  EXPECT_EQ(source->threads.size(), 8U);
  EXPECT_EQ(read.load(), plan_weights(list).file_bytes());
  for (const auto& [offset, size] : source->ranges) {
    EXPECT_LE(size, 32'768U) << offset;
  }
  const WeightList again = read_to_memory(list);
  HostMemory memory;
  for (std::size_t i = 0; i < again.weights.size(); ++i) {
    EXPECT_EQ(again.weights[i].name, list.weights[i].name);
    memory.push_back(again.sources.at(again.weights[i].source)->map());
  }
  EXPECT_TRUE(right(list, memory));
}

TEST(InMemory, WhereNoThreadStartsOneReadsAll) {
  const auto source = std::make_shared<Distant>(Reading{8, 32'768});
  const WeightList list = listed(source);
  const NoThreads none;
  EXPECT_TRUE(right(list, in_memory(list)));
  EXPECT_EQ(source->threads.size(), 1U);
}

TEST(InMemory, TheFirstErrorEndsTheOtherReads) {
  const auto source = std::make_shared<Distant>(Reading{4, 32'768});
  source->fails_at = 550'000;
  EXPECT_THROW(in_memory(listed(source)), Error);
  EXPECT_GE(source->interrupts.load(), 1);
  EXPECT_LT(source->ranges.size(), 16U);
}

TEST(InMemory, ItEndsWhenItIsStopped) {
  const auto source = std::make_shared<Distant>(Reading{4, 32'768});
  source->stops_after = 3;
  try {
    static_cast<void>(in_memory(listed(source), source->stop.get_token()));
    FAIL() << "it read all";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::closed);
  }
  EXPECT_LE(source->ranges.size(), 6U) << "each thread may have begun one more";
}

TEST(InMemory, BuffersOfAnotherSizeAreOthers) {
  const PinnedBuffers buffers(8U << 20U, 2);
  EXPECT_TRUE(buffers.are(8U << 20U, 2));
  EXPECT_TRUE(buffers.are((8U << 20U) - 1, 2));
  EXPECT_FALSE(buffers.are(4U << 20U, 2));
  EXPECT_FALSE(buffers.are(4U << 20U, 4));
  EXPECT_FALSE(buffers.are(8U << 20U, 1));
}

}  // namespace
}  // namespace ortmulti::tests
