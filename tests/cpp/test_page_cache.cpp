#include <gtest/gtest.h>

#include <string>

#include "core/base/page_cache.hpp"
#include "file_in_cache.hpp"

namespace ortmulti::tests {
namespace {

constexpr std::size_t mib = 1U << 20U;

struct Way {
  const char* name;
  Residency (*ask)(int, std::uint64_t, std::uint64_t);
};

class PageCache : public testing::TestWithParam<Way> {
 protected:
  static Residency ask(const FileInCache& file, std::uint64_t offset, std::uint64_t length) {
    return GetParam().ask(file.descriptor(), offset, length);
  }
  // Asked again of evicted pages where a fast disk may have brought them while the kernel was asked.
  static bool calls_absent(const FileInCache& file, std::uint64_t offset, std::uint64_t length) {
    const int tries = GetParam().ask == residency_by_reading ? 100 : 1;
    for (int i = 0; i < tries; ++i) {
      if (ask(file, offset, length) == Residency::absent) {
        return true;
      }
      EXPECT_TRUE(file.evict());
    }
    return false;
  }
  TemporaryFolder folder;
};

TEST_P(PageCache, KnowsWhatIsInMemory) {
  const FileInCache file(folder, "file", 8 * mib);
  EXPECT_EQ(ask(file, 0, 8 * mib), Residency::resident);
  EXPECT_EQ(ask(file, 12345, mib), Residency::resident);
  if (!file.evict()) {
    GTEST_SKIP() << "this file system keeps its pages";
  }
  EXPECT_TRUE(calls_absent(file, 4 * mib + 17, 4096));
  EXPECT_TRUE(calls_absent(file, 0, 8 * mib));
}

TEST_P(PageCache, KnowsThatAPartIsMissing) {
  const FileInCache file(folder, "file", 8 * mib);
  if (!file.evict(6 * mib, 2 * mib)) {
    GTEST_SKIP() << "this file system keeps its pages";
  }
  EXPECT_EQ(ask(file, 0, 6 * mib), Residency::resident);
  EXPECT_TRUE(calls_absent(file, mib, 6 * mib));
}

TEST_P(PageCache, NothingIsMissingBeyondTheEnd) {
  const FileInCache file(folder, "file", mib + 5);
  EXPECT_EQ(ask(file, 0, 64 * mib), Residency::resident);
  EXPECT_EQ(ask(file, 2 * mib, mib), Residency::resident);
  EXPECT_EQ(ask(file, 0, 0), Residency::resident);
  const FileInCache empty(folder, "empty", 0);
  EXPECT_EQ(ask(empty, 0, mib), Residency::resident);
}

TEST_P(PageCache, OfWhatCannotBeReadIsUnknown) {
  EXPECT_EQ(GetParam().ask(-1, 0, mib), Residency::unknown);
  const int descriptor = open(folder.path().c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(descriptor, 0);
  EXPECT_EQ(GetParam().ask(descriptor, 0, mib), Residency::unknown);
  close(descriptor);
}

INSTANTIATE_TEST_SUITE_P(Ways, PageCache,
                         testing::Values(Way{"reading", residency_by_reading}, Way{"mapping", residency_by_mapping},
                                         Way{"either", residency}),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(PageCacheOfFilesInMemory, IsAlwaysThere) {
  const std::string path = "/dev/shm/ortmulti-test-" + std::to_string(getpid());
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (descriptor < 0) {
    GTEST_SKIP() << "there is no /dev/shm";
  }
  unlink(path.c_str());
  ASSERT_EQ(ftruncate(descriptor, 4 * mib), 0);  // holes: no pages, and nothing to read from a disk either
  EXPECT_EQ(residency(descriptor, 0, 4 * mib), Residency::resident);
  close(descriptor);
}

}  // namespace
}  // namespace ortmulti::tests
