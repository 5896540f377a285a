#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <set>
#include <stop_token>
#include <string>

#include "core/base/file.hpp"
#include "core/base/hash.hpp"
#include "core/base/stoppable_task.hpp"
#include "failing_threads.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

constexpr std::size_t block = std::size_t{4} << 20U;

std::string content(std::size_t size) {
  std::string text(size, '\0');
  std::uint64_t state = size;
  for (char& byte : text) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    byte = static_cast<char>(state >> 56U);
  }
  return text;
}

std::uint64_t hash_of(const std::string& text, std::uint64_t seed) {
  Hash hash(seed);
  hash.add(text.data(), text.size());
  return hash.sum();
}

TEST(Hash, TellsTextsLengthsAndSeedsApart) {
  std::set<std::uint64_t> sums;
  std::size_t texts = 0;
  for (const std::string& text : {std::string(), std::string("a"), std::string("a\0", 2), content(64), content(65)}) {
    for (const std::uint64_t seed : {0, 1, 2}) {
      sums.insert(hash_of(text, seed));
      ++texts;
    }
  }
  EXPECT_EQ(sums.size(), texts);
}

TEST(Hash, IsThatOfTheWholeTextPieceByPiece) {
  const std::string text = content(3 * Hash::width + 5);
  Hash pieces;
  pieces.add(text.data(), Hash::width);
  pieces.add(text.data() + Hash::width, text.size() - Hash::width);
  EXPECT_EQ(pieces.sum(), hash_of(text, 0));
}

// Stored sums stay valid: another algorithm needs another format of what stores them.
TEST(Checksum, StaysTheSame) {
  const TemporaryFolder folder;
  const std::string text = content(block + 1000);
  EXPECT_EQ(file_checksum(folder.write("file", "")), 0U);
  EXPECT_EQ(file_checksum(folder.write("file", text.substr(0, 1000))), 14680702025720715116U);
  EXPECT_EQ(file_checksum(folder.write("file", text)), 2302120141783537779U);
}

TEST(Checksum, NoticesEveryBit) {
  const TemporaryFolder folder;
  std::string text = content(100);
  std::set<std::uint64_t> sums = {file_checksum(folder.write("file", text))};
  for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
    const auto flip = static_cast<char>(1U << (bit % 8));
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ flip);
    sums.insert(file_checksum(folder.write("file", text)));
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ flip);
  }
  EXPECT_EQ(sums.size(), 1 + 8 * text.size());
}

// Words of one lane are this far from each other.
constexpr std::size_t lane_bytes = 64;

TEST(Checksum, NoticesTwoBitsThatMightUndoEachOther) {
  const TemporaryFolder folder;
  std::string text = content(4 * lane_bytes);
  std::set<std::uint64_t> sums;
  const auto flip = [&text](std::size_t bit) {
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ static_cast<char>(1U << (bit % 8)));
  };
  for (std::size_t first = 0; first < 64; ++first) {
    for (std::size_t second = 0; second < 64; ++second) {
      flip(first);
      flip(8 * lane_bytes + second);
      sums.insert(file_checksum(folder.write("file", text)));
      flip(first);
      flip(8 * lane_bytes + second);
    }
  }
  sums.insert(file_checksum(folder.write("file", text)));
  EXPECT_EQ(sums.size(), 1U + std::size_t{64} * 64);
}

TEST(Checksum, IsTakenByManyAtOnce) {
  const TemporaryFolder folder;
  const std::string text = content(3 * block + 1);
  const std::string path = folder.write("file", text);
  in_threads(4, [&](int) { EXPECT_EQ(file_checksum(path), 13212742451505775127U); });
}

TEST(Checksum, OfWhatCannotBeReadIsAnError) {
  const TemporaryFolder folder;
  EXPECT_TRUE(throws(ErrorKind::no_such_file, {"nowhere"}, [&] { file_checksum(folder / "nowhere"); }));
  EXPECT_TRUE(throws(ErrorKind::no_such_file, {"is not a regular file"}, [&] { file_checksum(folder.path()); }));
  std::stop_source stopped;
  stopped.request_stop();
  EXPECT_TRUE(throws(ErrorKind::fail, {"cannot read"},
                     [&] { file_checksum(folder.write("file", "bytes"), stopped.get_token()); }));
}

// The checksum beside the caller.
StoppableTask<std::uint64_t> begin_checksum(const std::string& path) {
  return StoppableTask<std::uint64_t>([path](const std::stop_token& stop) { return file_checksum(path, stop); });
}

TEST(Checksum, IsComputedBesideTheCaller) {
  const TemporaryFolder folder;
  const std::string text = content(2 * block + 1);
  const std::string path = folder.write("file", text);
  StoppableTask<std::uint64_t> sum = begin_checksum(path);
  EXPECT_TRUE(sum.wait(std::chrono::seconds(60)));
  const std::uint64_t expected = sum.take();
  EXPECT_EQ(expected, file_checksum(path));
  const NoThreads none;
  StoppableTask<std::uint64_t> here = begin_checksum(path);
  EXPECT_TRUE(here.wait(std::chrono::milliseconds(0)));
  EXPECT_EQ(here.take(), expected);
  StoppableTask<std::uint64_t> missing = begin_checksum(folder / "nowhere");
  EXPECT_TRUE(throws(ErrorKind::no_such_file, {"nowhere"}, [&] { missing.take(); }));
}

TEST(Checksum, ThatNobodyWantsEndsSoon) {
  const TemporaryFolder folder;
  const std::string path = folder.write("sparse", "");
  ASSERT_EQ(truncate(path.c_str(), std::int64_t{1} << 38U), 0);  // minutes to read
  const auto begun = std::chrono::steady_clock::now();
  {
    const StoppableTask<std::uint64_t> sum = begin_checksum(path);
    EXPECT_FALSE(sum.wait(std::chrono::milliseconds(10)));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(20));
}

}  // namespace
}  // namespace ortmulti::tests
