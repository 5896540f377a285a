#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/weights/prefetch.hpp"
#include "file_in_cache.hpp"

namespace ortmulti::tests {
namespace {

constexpr std::size_t mib = 1U << 20U;
constexpr std::size_t page = 4096;
using Range = Prefetch::Range;

class ReadingAhead : public testing::Test {
 protected:
  bool wait(const Prefetch& reader, const std::string& path, std::uint64_t end) const {
    return reader.wait(path, end, never);
  }
  TemporaryFolder folder;
  const std::atomic<bool> never{false};
};

#define EVICT_OR_SKIP(file)                             \
  if (!(file).evict()) {                                \
    GTEST_SKIP() << "this file system keeps its pages"; \
  }

TEST_F(ReadingAhead, BringsAFileIntoMemory) {
  const FileInCache file(folder, "weights", 21 * mib + 123);
  EVICT_OR_SKIP(file);
  const Prefetch reader({{file.path(), 0, 21 * mib + 123}});
  EXPECT_TRUE(wait(reader, file.path(), 21 * mib + 123));
  EXPECT_EQ(file.resident(), 21 * mib / page + 1);
  EXPECT_TRUE(reader.finished());
  EXPECT_EQ(reader.bytes_read(), 21 * mib + 123);
}

TEST_F(ReadingAhead, PassesRangesWhoseSumExceeds64Bits) {
  constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
  const std::string path = folder.write("weights", "text");
  const Prefetch reader({{path, 0, 4}, {"/nowhere/a", 0, most}, {"/nowhere/b", 0, most}, {"/nowhere/c", 0, most}});
  std::atomic<bool> stop{false};
  const auto passed = std::async(std::launch::async, [&] {
    return reader.wait(path, 4, stop) && reader.wait("/nowhere/b", 100, stop) && reader.wait("/nowhere/c", most, stop);
  });
  EXPECT_EQ(passed.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  stop = true;
  EXPECT_TRUE(reader.finished());
}

TEST_F(ReadingAhead, DoesNotReadWhatIsThere) {
  constexpr std::size_t size = 128 * mib;
  const FileInCache file(folder, "weights", size);
  EVICT_OR_SKIP(file);
  {
    const Prefetch reader({{file.path(), 0, size}});
    EXPECT_TRUE(wait(reader, file.path(), size));
  }
  const Prefetch again({{file.path(), 0, size}});
  EXPECT_TRUE(wait(again, file.path(), size));
  EXPECT_EQ(again.bytes_read(), 0U);
  ASSERT_TRUE(file.evict(24 * mib, 8 * mib));
  const Prefetch middle({{file.path(), 0, size}});
  EXPECT_TRUE(wait(middle, file.path(), size));
  EXPECT_GE(middle.bytes_read(), 8 * mib);
  EXPECT_LE(middle.bytes_read(), 64 * mib);
  EXPECT_EQ(file.resident(), size / page);
}

TEST_F(ReadingAhead, GoesThroughTheRangesInTheirOrder) {
  const FileInCache first(folder, "first", 16 * mib);
  const FileInCache second(folder, "second", 4 * mib);
  EVICT_OR_SKIP(first);
  EVICT_OR_SKIP(second);
  const Prefetch reader({{first.path(), 8 * mib, 8 * mib}, {second.path(), 0, 4 * mib}, {first.path(), 0, 2 * mib}});
  EXPECT_TRUE(wait(reader, first.path(), 16 * mib));
  EXPECT_EQ(first.resident(8 * mib, 8 * mib), 8 * mib / page);
  EXPECT_TRUE(wait(reader, second.path(), 4 * mib));
  EXPECT_EQ(second.resident(), 4 * mib / page);
  EXPECT_TRUE(wait(reader, first.path(), 2 * mib));
  EXPECT_EQ(first.resident(0, 2 * mib), 2 * mib / page);
  EXPECT_EQ(reader.bytes_read(), 14 * mib);
  EXPECT_TRUE(reader.finished());
}

TEST_F(ReadingAhead, NeighboursAreOneRange) {
  const FileInCache file(folder, "weights", 4 * mib);
  EVICT_OR_SKIP(file);
  std::vector<Range> ranges;
  for (std::uint64_t at = 0; at < 4 * mib; at += 1024) {
    ranges.push_back({file.path(), at, 1000});
  }
  const Prefetch reader(ranges);
  for (std::uint64_t end = 1; end < 4 * mib; end += 100'000) {
    EXPECT_TRUE(wait(reader, file.path(), end));
  }
  EXPECT_TRUE(wait(reader, file.path(), 4 * mib));
  EXPECT_EQ(reader.bytes_read(), 4 * mib - 24);
}

TEST_F(ReadingAhead, OverlappingRangesAreReadOnce) {
  const FileInCache file(folder, "weights", 4 * mib);
  EVICT_OR_SKIP(file);
  const Prefetch reader({{file.path(), 0, 3 * mib}, {file.path(), mib, mib}, {file.path(), 2 * mib, 2 * mib}});
  EXPECT_TRUE(wait(reader, file.path(), 4 * mib));
  EXPECT_EQ(reader.bytes_read(), 4 * mib);
}

TEST_F(ReadingAhead, WhatIsCoveredByNoRangeIsNotAwaited) {
  const FileInCache file(folder, "weights", 4 * mib);
  const Prefetch reader({{file.path(), mib, mib}, {file.path(), 3 * mib, 0}});
  EXPECT_FALSE(wait(reader, folder / "other", 1));
  EXPECT_FALSE(wait(reader, file.path(), mib));
  EXPECT_TRUE(wait(reader, file.path(), mib + 1));
  EXPECT_TRUE(wait(reader, file.path(), 4 * mib));  // beyond the range: as far as it goes
  const Prefetch nothing({});
  EXPECT_TRUE(nothing.finished());
  EXPECT_FALSE(wait(nothing, file.path(), 1));
}

TEST_F(ReadingAhead, WhatCannotBeReadIsPassed) {
  const FileInCache file(folder, "weights", 2 * mib);
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  constexpr std::uint64_t huge = std::numeric_limits<std::uint64_t>::max();
  const std::vector<std::string> paths = {folder / "missing", folder.path(), pipe, "/proc/self/mem", "/dev/zero"};
  std::vector<Range> ranges;
  for (const std::string& path : paths) {
    ranges.push_back({path, 0, 100 * mib});
    ranges.push_back({path, huge / 2 + 1, 100});
  }
  ranges.push_back({file.path(), 0, mib});
  const Prefetch reader(ranges);
  for (const std::string& path : paths) {
    EXPECT_TRUE(wait(reader, path, 100 * mib)) << path;
  }
  EXPECT_TRUE(wait(reader, file.path(), mib));
  const Prefetch endless({{file.path(), mib, huge}});
  EXPECT_TRUE(wait(endless, file.path(), huge));
}

TEST_F(ReadingAhead, AFileMayEndEarlier) {
  const FileInCache file(folder, "weights", 3 * mib + 10);
  const FileInCache next(folder, "next", mib);
  EVICT_OR_SKIP(file);
  EVICT_OR_SKIP(next);
  const Prefetch reader({{file.path(), 0, 100 * mib}, {file.path(), 200 * mib, mib}, {next.path(), 0, mib}});
  EXPECT_TRUE(wait(reader, next.path(), mib));
  EXPECT_EQ(reader.bytes_read(), 4 * mib + 10);
}

TEST_F(ReadingAhead, MayBeAwaitedByMany) {
  const FileInCache file(folder, "weights", 48 * mib);
  EVICT_OR_SKIP(file);
  const Prefetch reader({{file.path(), 0, 48 * mib}});
  std::vector<std::future<bool>> waiting;
  waiting.reserve(8);
  for (std::size_t i = 0; i < 8; ++i) {
    waiting.push_back(std::async(std::launch::async, [&, i] {
      for (std::size_t block = i; block < 48; block += 8) {
        if (!wait(reader, file.path(), (block + 1) * mib) || file.resident(block * mib, mib) != mib / page) {
          return false;
        }
      }
      return true;
    }));
  }
  for (auto& one : waiting) {
    EXPECT_TRUE(one.get());
  }
}

TEST_F(ReadingAhead, WhoWaitsCanBeStopped) {
  // Much more than is read before the flag is set: 64 GiB of a sparse file, which has no pages.
  const std::string path = folder.write("sparse", "");
  ASSERT_EQ(truncate(path.c_str(), static_cast<off_t>(64) << 30U), 0);
  std::atomic<bool> stop{false};
  const std::size_t threads = thread_count();
  {
    const Prefetch reader({{path, 0, static_cast<std::uint64_t>(64) << 30U}});
    auto waiting =
        std::async(std::launch::async, [&] { return reader.wait(path, static_cast<std::uint64_t>(64) << 30U, stop); });
    EXPECT_TRUE(wait(reader, path, 64 * mib));
    stop.store(true);
    EXPECT_FALSE(waiting.get());
    EXPECT_FALSE(reader.finished());
  }
  EXPECT_EQ(thread_count(), threads);
}

TEST_F(ReadingAhead, StopsAtAnyTime) {
  const FileInCache file(folder, "weights", 16 * mib);
  for (int i = 0; i < 50; ++i) {
    file.evict();
    const Prefetch reader({{file.path(), 0, 16 * mib}});
    for (int j = 0; j < i; ++j) {
      std::this_thread::yield();
    }
  }
}

TEST_F(ReadingAhead, ReplacedFilesAreReadAsTheyAreFound) {
  const std::string path = folder.write("weights", std::string(mib, 'a'));
  const Prefetch reader({{path, 0, mib}});
  ASSERT_EQ(unlink(path.c_str()), 0);
  EXPECT_TRUE(wait(reader, path, mib));
}

class ReadingAheadDeathTest : public ReadingAhead {
 protected:
  ReadingAheadDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(ReadingAheadDeathTest, AForkedChildNeitherWaitsNorJoins) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer ends a child of several threads that has threads of its own";
#endif
  EXPECT_EXIT(
      {
        const std::string path = folder.write("sparse", "");
        constexpr std::uint64_t size = static_cast<std::uint64_t>(64) << 30U;
        bool good = truncate(path.c_str(), static_cast<off_t>(size)) == 0;
        std::atomic<bool> stop{false};
        auto reader = std::make_unique<Prefetch>(std::vector<Range>{{path, 0, size}});
        std::thread waiting([&] { reader->wait(path, size, stop); });
        good = good && wait(*reader, path, 64 * mib);
        good = good && in_forked_child([&] {
                 const bool told = !reader->wait(path, size, never);
                 reader.reset();
                 const Prefetch own({{path, 0, mib}});
                 return told && wait(own, path, mib);
               });
        stop.store(true);
        waiting.join();
        reader.reset();
        _exit(good ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace ortmulti::tests
