#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/file.hpp"
#include "core/base/source.hpp"
#include "loading.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

constexpr const char* digits = "0123456789";

std::shared_ptr<const Source> memory_of(const std::string& text) {
  const auto bytes = std::make_shared<const std::string>(text);
  return memory_source("a name", {bytes, reinterpret_cast<const unsigned char*>(bytes->data())}, text.size());
}

std::string read(const Source& source, std::uint64_t size, std::uint64_t offset) {
  std::string text(size, ' ');
  source.read(text.data(), size, offset);
  return text;
}

class EachSource : public testing::TestWithParam<const char*> {
 protected:
  std::shared_ptr<const Source> make(const std::string& text) const {
    return GetParam() == std::string("file") ? file_source(folder.write("a name", text)) : memory_of(text);
  }
  TemporaryFolder folder;
};

TEST_P(EachSource, GivesExactlyTheBytesAskedFor) {
  const auto source = make(digits);
  EXPECT_EQ(source->size(), 10U);
  EXPECT_EQ(read(*source, 4, 6), "6789");
  EXPECT_EQ(read(*source, 10, 0), digits);
  EXPECT_EQ(read(*source, 0, 10), "");
  EXPECT_TRUE(source->unchanged());
  source->check();
}

TEST_P(EachSource, NamesItselfAndItsSizeForWhatIsBeyondItsEnd) {
  const auto source = make(digits);
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  for (const auto& [size, offset] :
       std::vector<std::pair<std::uint64_t, std::uint64_t>>{{4, 7}, {1, 10}, {0, 11}, {1, 100}, {most, 1}, {1, most}}) {
    std::string text(4, ' ');
    EXPECT_TRUE(throws(ErrorKind::weights, {"a name' has 10 bytes, and ", " are needed"},
                       [&, size = size, offset = offset] { source->read(text.data(), size, offset); }));
    EXPECT_EQ(text, "    ");
  }
}

TEST_P(EachSource, HasItsBytesInMemoryAsLongAsTheyAreHeld) {
  auto source = make(digits);
  const auto bytes = source->map();
  source = nullptr;
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.get()), 10), digits);
}

TEST_P(EachSource, MayBeEmpty) {
  const auto source = make("");
  EXPECT_EQ(source->size(), 0U);
  EXPECT_EQ(read(*source, 0, 0), "");
  EXPECT_NE(source->map(), nullptr);
}

TEST_P(EachSource, IsReadByManyThreads) {
  std::string text(std::size_t{1} << 20U, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) {
    text[i] = static_cast<char>(i * 31 + i / 4096);
  }
  const auto source = make(text);
  in_threads(4, [&](int i) {
    for (auto at = static_cast<std::size_t>(i); at + 5000 <= text.size(); at += 20'000) {
      EXPECT_EQ(read(*source, 5000, at), text.substr(at, 5000));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, EachSource, testing::Values("file", "memory"),
                         [](const auto& of) { return std::string(of.param); });

TEST(FileSource, IsTheSameAsAnotherOfAnUnchangedFile) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", digits);
  std::filesystem::create_symlink(path, folder / "link");
  const auto source = file_source(path);
  EXPECT_EQ(source->name(), real_path(path));
  EXPECT_EQ(source->identity(), file_source(folder / "link")->identity());
  EXPECT_NE(source->identity(), file_source(folder.write("other", digits))->identity());
}

TEST(FileSource, OfNoRegularFileIsAnErrorThatNamesIt) {
  const TemporaryFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(throws(ErrorKind::no_such_file, {"nowhere", "No such file"}, [&] { file_source(folder / "nowhere"); }));
  for (const std::string& path : {folder / "pipe", folder.path(), std::string("/dev/zero")}) {
    EXPECT_TRUE(throws(ErrorKind::no_such_file, {path.c_str(), "not a regular file"}, [&] { file_source(path); }));
  }
}

// Each changes the file at a path.
const std::vector<std::pair<const char*, std::function<void(const std::string&)>>>& changes() {
  static const std::vector<std::pair<const char*, std::function<void(const std::string&)>>> all = {
      {"removed", [](const std::string& path) { std::filesystem::remove(path); }},
      {"shortened", [](const std::string& path) { std::filesystem::resize_file(path, 5); }},
      {"lengthened", [](const std::string& path) { std::filesystem::resize_file(path, 50); }},
      {"touched", [](const std::string& path) { std::filesystem::last_write_time(path, {}); }},
      {"replaced",
       [](const std::string& path) {
         std::filesystem::copy_file(path, path + ".new");
         std::filesystem::rename(path + ".new", path);
       }},
      {"moved behind a link",
       [](const std::string& path) {
         std::filesystem::rename(path, path + ".moved");
         std::filesystem::create_symlink(path + ".moved", path);
       }},
      {"a folder",
       [](const std::string& path) {
         std::filesystem::remove(path);
         std::filesystem::create_directory(path);
       }},
      {"a pipe", [](const std::string& path) {
         std::filesystem::remove(path);
         ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
       }}};
  return all;
}

TEST(FileSource, ThatWasChangedSaysSo) {
  for (const auto& [what, change] : changes()) {
    SCOPED_TRACE(what);
    const TemporaryFolder folder;
    const auto source = file_source(folder.write("file", digits));
    const auto held = source->open();
    change(source->name());
    EXPECT_FALSE(source->unchanged());
    EXPECT_TRUE(throws(ErrorKind::weights, {"/file' was changed or replaced", "load again"}, [&] { source->check(); }));
  }
}

TEST(FileSource, WrittenAnewWithItsOldTimeIsAnother) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", digits);
  const auto source = file_source(path);
  write_anew(path, "x");
  EXPECT_NE(file_source(path)->identity(), source->identity());
}

TEST(FileSource, IsReadWithOtherRightsAndFurtherLinks) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", digits);
  const auto source = file_source(path);
  std::filesystem::create_hard_link(path, folder / "link");
  chmod(path.c_str(), 0600);
  source->check();
  EXPECT_EQ(read(*source, 4, 6), "6789");
}

TEST(FileSource, ThatWasChangedBeforeItIsOpenedIsNotRead) {
  for (const auto& [what, change] : changes()) {
    if (std::string(what) == "moved behind a link") {
      continue;  // the bytes are the same
    }
    SCOPED_TRACE(what);
    const TemporaryFolder folder;
    const auto source = file_source(folder.write("file", digits));
    change(source->name());
    EXPECT_TRUE(throws(ErrorKind::weights, {"/file'"}, [&] { read(*source, 4, 0); }));
    EXPECT_TRUE(throws(ErrorKind::weights, {"/file'"}, [&] { source->map(); }));
    EXPECT_TRUE(throws(ErrorKind::weights, {"/file'"}, [&] { source->open(); }));
  }
}

TEST(FileSource, ThatIsShortenedWhileItIsOpenSaysWhere) {
  const TemporaryFolder folder;
  const auto source = file_source(folder.write("file", digits));
  const auto held = source->open();
  std::filesystem::resize_file(source->name(), 5);
  EXPECT_TRUE(throws(ErrorKind::weights, {"/file' ends at byte 5: it was shortened while it was loaded"},
                     [&] { read(*source, 4, 3); }));
}

TEST(FileSource, ThatCannotBeReadSaysWhy) {
  const TemporaryFolder folder;
  const auto source = file_source(folder.write("file", digits));
  void* const no_memory = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_TRUE(throws(ErrorKind::weights, {"reading '", "/file' at byte 3 failed: Bad address"},
                     [&] { source->read(no_memory, 4, 3); }));
  munmap(no_memory, 4096);
}

TEST(FileSource, IsOpenAsLongAsSomebodyHoldsIt) {
  const TemporaryFolder folder;
  const auto source = file_source(folder.write("file", digits));
  const std::size_t before = open_files();
  auto held = source->open();
  EXPECT_EQ(source->open(), held);
  EXPECT_EQ(open_files(), before + 1);
  std::filesystem::remove(source->name());
  EXPECT_EQ(read(*source, 4, 6), "6789");
  const auto mapped = source->map();
  held = nullptr;
  EXPECT_EQ(open_files(), before);
  EXPECT_EQ(mapped.get()[9], '9');
}

TEST(MemorySource, IsUsedWhereItLies) {
  const std::string text = digits;
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  const auto owner = std::make_shared<int>();
  {
    const auto source = memory_source("a name", {owner, bytes}, 10);
    EXPECT_EQ(source->map().get(), bytes);
    EXPECT_EQ(source->open(), nullptr);
    EXPECT_EQ(source->identity(), memory_source("a name", {owner, bytes}, 10)->identity());
    EXPECT_NE(source->identity(), memory_source("a name", {owner, bytes + 1}, 9)->identity());
    EXPECT_EQ(owner.use_count(), 2);
  }
  EXPECT_EQ(owner.use_count(), 1);
}

}  // namespace
}  // namespace ortmulti::tests
