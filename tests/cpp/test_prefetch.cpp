#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "core/base/source.hpp"
#include "core/weights/prefetch.hpp"
#include "file_in_cache.hpp"

namespace ortmulti::tests {
namespace {

constexpr std::size_t mib = 1U << 20U;
constexpr std::size_t page = 4096;
using Range = Prefetch::Range;

class ReadingAhead : public testing::Test {
 protected:
  bool wait(const Prefetch& reader, const Source& source, std::uint64_t end) const {
    return reader.wait(source, end, never);
  }
  TemporaryFolder folder;
  const std::stop_token never;
};

#define EVICT_OR_SKIP(file)                             \
  if (!(file).evict()) {                                \
    GTEST_SKIP() << "this file system keeps its pages"; \
  }

TEST_F(ReadingAhead, BringsAFileIntoMemory) {
  const FileInCache file(folder, "weights", 21 * mib + 123);
  EVICT_OR_SKIP(file);
  const Prefetch reader({{file.source(), 0, 21 * mib + 123}});
  EXPECT_TRUE(wait(reader, *file.source(), 21 * mib + 123));
  EXPECT_EQ(file.resident(), 21 * mib / page + 1);
  EXPECT_TRUE(reader.finished());
  EXPECT_EQ(reader.bytes_read(), 21 * mib + 123);
}

TEST_F(ReadingAhead, PassesRangesWhoseSumExceeds64Bits) {
  constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
  const auto file = file_source(folder.write("weights", "text"));
  const auto first = memory_source("first", nullptr, most);
  const auto second = memory_source("second", nullptr, most);
  const auto third = memory_source("third", nullptr, most);
  const Prefetch reader({{file, 0, 4}, {first, 0, most}, {second, 0, most}, {third, 0, most}});
  std::stop_source stop;
  const auto passed = std::async(std::launch::async, [&] {
    return reader.wait(*file, 4, stop.get_token()) && reader.wait(*second, 100, stop.get_token()) &&
           reader.wait(*third, most, stop.get_token());
  });
  EXPECT_EQ(passed.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  stop.request_stop();
  EXPECT_TRUE(reader.finished());
}

TEST_F(ReadingAhead, DoesNotReadWhatIsThere) {
  constexpr std::size_t size = 128 * mib;
  const FileInCache file(folder, "weights", size);
  EVICT_OR_SKIP(file);
  {
    const Prefetch reader({{file.source(), 0, size}});
    EXPECT_TRUE(wait(reader, *file.source(), size));
  }
  const Prefetch again({{file.source(), 0, size}});
  EXPECT_TRUE(wait(again, *file.source(), size));
  EXPECT_EQ(again.bytes_read(), 0U);
  ASSERT_TRUE(file.evict(24 * mib, 8 * mib));
  const Prefetch middle({{file.source(), 0, size}});
  EXPECT_TRUE(wait(middle, *file.source(), size));
  EXPECT_GE(middle.bytes_read(), 8 * mib);
  EXPECT_LE(middle.bytes_read(), 64 * mib);
  EXPECT_EQ(file.resident(), size / page);
}

TEST_F(ReadingAhead, GoesThroughTheRangesInTheirOrder) {
  const FileInCache first(folder, "first", 16 * mib);
  const FileInCache second(folder, "second", 4 * mib);
  EVICT_OR_SKIP(first);
  EVICT_OR_SKIP(second);
  const Prefetch reader(
      {{first.source(), 8 * mib, 8 * mib}, {second.source(), 0, 4 * mib}, {first.source(), 0, 2 * mib}});
  EXPECT_TRUE(wait(reader, *first.source(), 16 * mib));
  EXPECT_EQ(first.resident(8 * mib, 8 * mib), 8 * mib / page);
  EXPECT_TRUE(wait(reader, *second.source(), 4 * mib));
  EXPECT_EQ(second.resident(), 4 * mib / page);
  EXPECT_TRUE(wait(reader, *first.source(), 2 * mib));
  EXPECT_EQ(first.resident(0, 2 * mib), 2 * mib / page);
  EXPECT_EQ(reader.bytes_read(), 14 * mib);
  EXPECT_TRUE(reader.finished());
}

TEST_F(ReadingAhead, NeighboursAreOneRange) {
  const FileInCache file(folder, "weights", 4 * mib);
  EVICT_OR_SKIP(file);
  std::vector<Range> ranges;
  for (std::uint64_t at = 0; at < 4 * mib; at += 1024) {
    ranges.push_back({file.source(), at, 1000});
  }
  const Prefetch reader(ranges);
  for (std::uint64_t end = 1; end < 4 * mib; end += 100'000) {
    EXPECT_TRUE(wait(reader, *file.source(), end));
  }
  EXPECT_TRUE(wait(reader, *file.source(), 4 * mib));
  EXPECT_EQ(reader.bytes_read(), 4 * mib - 24);
}

TEST_F(ReadingAhead, OverlappingRangesAreReadOnce) {
  const FileInCache file(folder, "weights", 4 * mib);
  EVICT_OR_SKIP(file);
  const Prefetch reader({{file.source(), 0, 3 * mib}, {file.source(), mib, mib}, {file.source(), 2 * mib, 2 * mib}});
  EXPECT_TRUE(wait(reader, *file.source(), 4 * mib));
  EXPECT_EQ(reader.bytes_read(), 4 * mib);
}

TEST_F(ReadingAhead, WhatIsCoveredByNoRangeIsNotAwaited) {
  const FileInCache file(folder, "weights", 4 * mib);
  const Prefetch reader({{file.source(), mib, mib}, {file.source(), 3 * mib, 0}});
  EXPECT_FALSE(wait(reader, *memory_source("other", nullptr, 1), 1));
  EXPECT_FALSE(wait(reader, *file.source(), mib));
  EXPECT_TRUE(wait(reader, *file.source(), mib + 1));
  EXPECT_TRUE(wait(reader, *file.source(), 4 * mib));  // beyond the range: as far as it goes
  const Prefetch nothing({});
  EXPECT_TRUE(nothing.finished());
  EXPECT_FALSE(wait(nothing, *file.source(), 1));
}

TEST_F(ReadingAhead, WhatCannotBeReadIsPassed) {
  const FileInCache file(folder, "weights", 2 * mib);
  constexpr std::uint64_t huge = std::numeric_limits<std::uint64_t>::max();
  std::vector<std::shared_ptr<const Source>> sources = {memory_source("memory", nullptr, 100 * mib),
                                                        file_source("/proc/self/mem")};
  const auto replaced_by = [&](const std::string& name, const std::function<void(const char*)>& replace) {
    sources.push_back(file_source(folder.write(name, "text")));
    const char* path = sources.back()->name().c_str();
    ASSERT_EQ(unlink(path), 0);
    replace(path);
  };
  replaced_by("nothing", [](const char*) {});
  replaced_by("folder", [](const char* path) { ASSERT_EQ(mkdir(path, 0700), 0); });
  replaced_by("pipe", [](const char* path) { ASSERT_EQ(mkfifo(path, 0600), 0); });
  replaced_by("device", [](const char* path) { ASSERT_EQ(symlink("/dev/zero", path), 0); });
  std::vector<Range> ranges;
  for (const auto& source : sources) {
    ranges.push_back({source, 0, 100 * mib});
    ranges.push_back({source, huge / 2 + 1, 100});
  }
  ranges.push_back({file.source(), 0, mib});
  const Prefetch reader(ranges);
  for (const auto& source : sources) {
    EXPECT_TRUE(wait(reader, *source, 100 * mib)) << source->name();
  }
  EXPECT_TRUE(wait(reader, *file.source(), mib));
  const Prefetch endless({{file.source(), mib, huge}});
  EXPECT_TRUE(wait(endless, *file.source(), huge));
}

TEST_F(ReadingAhead, AFileMayEndEarlier) {
  const FileInCache file(folder, "weights", 3 * mib + 10);
  const FileInCache next(folder, "next", mib);
  EVICT_OR_SKIP(file);
  EVICT_OR_SKIP(next);
  const Prefetch reader({{file.source(), 0, 100 * mib}, {file.source(), 200 * mib, mib}, {next.source(), 0, mib}});
  EXPECT_TRUE(wait(reader, *next.source(), mib));
  EXPECT_EQ(reader.bytes_read(), 4 * mib + 10);
}

TEST_F(ReadingAhead, MayBeAwaitedByMany) {
  const FileInCache file(folder, "weights", 48 * mib);
  EVICT_OR_SKIP(file);
  const Prefetch reader({{file.source(), 0, 48 * mib}});
  in_threads(8, [&](int i) {
    for (auto block = static_cast<std::size_t>(i); block < 48; block += 8) {
      EXPECT_TRUE(wait(reader, *file.source(), (block + 1) * mib));
      EXPECT_EQ(file.resident(block * mib, mib), mib / page);
    }
  });
}

TEST_F(ReadingAhead, WhoWaitsCanBeStopped) {
  // Much more than is read before the flag is set: 64 GiB of a sparse file, which has no pages.
  const std::string path = folder.write("sparse", "");
  ASSERT_EQ(truncate(path.c_str(), static_cast<off_t>(64) << 30U), 0);
  std::stop_source stop;
  const std::size_t threads = thread_count();
  {
    const auto file = file_source(path);
    const Prefetch reader({{file, 0, file->size()}});
    auto waiting = std::async(std::launch::async, [&] { return reader.wait(*file, file->size(), stop.get_token()); });
    EXPECT_TRUE(wait(reader, *file, 64 * mib));
    stop.request_stop();
    EXPECT_FALSE(waiting.get());
    EXPECT_FALSE(reader.finished());
  }
  EXPECT_EQ(thread_count(), threads);
}

TEST_F(ReadingAhead, StopsAtAnyTime) {
  const FileInCache file(folder, "weights", 16 * mib);
  for (int i = 0; i < 50; ++i) {
    file.evict();
    const Prefetch reader({{file.source(), 0, 16 * mib}});
    for (int j = 0; j < i; ++j) {
      std::this_thread::yield();
    }
  }
}

using ReadingAheadDeathTest = ReadingAhead;

TEST_F(ReadingAheadDeathTest, AForkedChildNeitherWaitsNorJoins) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer ends a child of several threads that has threads of its own";
#endif
  expect_in_own_process([&] {
    const std::string path = folder.write("sparse", "");
    constexpr std::uint64_t size = static_cast<std::uint64_t>(64) << 30U;
    bool good = truncate(path.c_str(), static_cast<off_t>(size)) == 0;
    std::stop_source stop;
    const auto file = file_source(path);
    auto reader = std::make_unique<Prefetch>(std::vector<Range>{{file, 0, size}});
    std::thread waiting([&] { reader->wait(*file, size, stop.get_token()); });
    good = good && wait(*reader, *file, 64 * mib);
    good = good && in_forked_child([&] {
             const bool told = !reader->wait(*file, size, never);
             reader.reset();
             const Prefetch own({{file, 0, mib}});
             return told && wait(own, *file, mib);
           });
    stop.request_stop();
    waiting.join();
    reader.reset();
    return good;
  });
}

}  // namespace
}  // namespace ortmulti::tests
