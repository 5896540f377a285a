#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/file_io.hpp"
#include "core/optimized_model.hpp"
#include "core/weight_list.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

// The models' "w": 256 x 256 in float32.
constexpr std::uint64_t wide_bytes = std::uint64_t{4} * 256 * 256;

class WeightListTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = missing_environment(); !missing.empty()) {
      GTEST_SKIP() << missing;
    }
  }

  static std::string bytes_of(const WeightList& list, const Weight& weight) {
    return read_file(list.files.at(weight.file).path).substr(weight.offset, weight.length);
  }

  // The two identity, which the weights of "wide" are.
  static std::string twice_identity() { return read_file(folder_of(model_path("wide")) + "/external.data"); }

  bool exists(const char* name) const {
    struct stat status{};
    return stat((folder / name).c_str(), &status) == 0;
  }

  TemporaryFolder folder;
};

TEST_F(WeightListTest, SaysWhereInlineAndExternalWeightsLie) {
  for (const char* name : {"wide", "external"}) {
    const WeightList list = shareable_weights(model_path(name));
    ASSERT_EQ(list.weights.size(), 1U) << name;
    EXPECT_EQ(list.weights[0].name, "w");
    EXPECT_EQ(list.weights[0].shape, (std::vector<std::int64_t>{256, 256}));
    EXPECT_EQ(list.weights[0].length, wide_bytes);
    EXPECT_EQ(bytes_of(list, list.weights[0]), twice_identity());
    EXPECT_EQ(list.files[0], identify_file(list.files[0].path));
  }
}

TEST_F(WeightListTest, TheModelIsAmongTheFilesWhereAllItsWeightsAreExternal) {
  const std::string path = model_path("external");
  const std::vector<WeightFile> files = shareable_weights(path).files;
  EXPECT_EQ(std::count(files.begin(), files.end(), identify_file(path)), 1);
  EXPECT_EQ(files.size(), 2U);
}

TEST_F(WeightListTest, NamesWhatIsMissingOrShort) {
  EXPECT_TRUE(throws(ErrorKind::no_such_file, {"'w'", "not_there.data"},
                     [] { shareable_weights(model_path("missing_data")); }));
  EXPECT_TRUE(throws(ErrorKind::fail, {"'w'", "short_data.data", "262144", "131072"},
                     [] { shareable_weights(model_path("short_data")); }));
  for (const char* name : {"text", "truncated"}) {
    EXPECT_TRUE(throws(ErrorKind::invalid_protobuf, {"not an ONNX model"}, [&] {
      shareable_weights(model_path(name));
    })) << name;
  }
}

TEST_F(WeightListTest, AnUnchangedModelIsSplitIntoItsGraphAndTheOriginalsWeights) {
  for (const char* name : {"wide", "external"}) {
    const std::string original = model_path(name);
    const SplitModel split = split_optimized_model(original, original, folder_of(original), folder.path(), {});
    EXPECT_EQ(split.own_bytes, 0U);
    ASSERT_EQ(split.weights.weights.size(), 1U);
    EXPECT_EQ(bytes_of(split.weights, split.weights.weights[0]), twice_identity());
    EXPECT_LT(read_file(folder / "model.onnx").size(), 1000U);
    EXPECT_TRUE(exists("shared"));
    EXPECT_FALSE(exists("weights.bin"));
  }
}

TEST_F(WeightListTest, WhatTheOriginalDoesNotHaveIsStored) {
  const std::string saved = model_path("wide");
  const SplitModel split = split_optimized_model(saved, "", folder_of(saved), folder.path(), {});
  EXPECT_EQ(split.own_bytes, wide_bytes);
  ASSERT_EQ(split.weights.weights.size(), 1U);
  EXPECT_EQ(split.weights.files[0], identify_file(folder / "weights.bin"));
  EXPECT_EQ(bytes_of(split.weights, split.weights.weights[0]), twice_identity());
}

TEST_F(WeightListTest, WhatMustNotBeSharedCanBeLoadedByOnnxRuntime) {
  const std::string saved = model_path("external");
  const SplitModel split = split_optimized_model(saved, saved, folder_of(saved), folder.path(), {"w"});
  EXPECT_EQ(split.own_bytes, wide_bytes);
  EXPECT_TRUE(split.weights.weights.empty());
  ASSERT_EQ(split.weights.left_out.size(), 1U);
  EXPECT_EQ(read_file(folder / "weights.bin"), twice_identity());
  // As the rules for external data want it: the split model is one whose weights are in a file beside it.
  const WeightList again = shareable_weights(folder / "model.onnx");
  ASSERT_EQ(again.weights.size(), 1U);
  EXPECT_EQ(bytes_of(again, again.weights[0]), twice_identity());
}

TEST_F(WeightListTest, AFailedSplitLeavesNothing) {
  for (const char* name : {"short_data", "missing_data", "text"}) {
    EXPECT_ANY_THROW(split_optimized_model(model_path(name), "", folder_of(model_path(name)), folder.path(), {}));
    EXPECT_FALSE(exists("model.onnx") || exists("weights.bin") || exists("shared")) << name;
  }
}

TEST(OutputFile, IsThereOnlyIfItWasKept) {
  const TemporaryFolder folder;
  {
    OutputFile file(folder / "kept");
    file.write("text", 4);
    file.close();
    file.keep();
    OutputFile other(folder / "not kept");
    other.write("text", 4);
  }
  EXPECT_EQ(read_file(folder / "kept"), "text");
  EXPECT_TRUE(throws(ErrorKind::no_such_file, {"not kept"}, [&] { identify_file(folder / "not kept"); }));
}

TEST(OutputFile, LeavesFilesOfOthersAlone) {
  const TemporaryFolder folder;
  folder.write("file", "text");
  EXPECT_TRUE(throws(ErrorKind::fail, {"cannot write", "file"}, [&] { const OutputFile file(folder / "file"); }));
  EXPECT_EQ(read_file(folder / "file"), "text");
}

TEST(InputFile, ReadsAllThatIsAskedForOrFails) {
  const TemporaryFolder folder;
  const InputFile file(folder.write("file", "0123456789"));
  std::string text(4, ' ');
  file.read(text.data(), 4, 6);
  EXPECT_EQ(text, "6789");
  EXPECT_TRUE(throws(ErrorKind::fail, {"file", "it ends before"}, [&] { file.read(text.data(), 4, 7); }));
}

}  // namespace
}  // namespace ortmulti::tests
