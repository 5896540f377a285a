#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "core/base/file.hpp"
#include "core/base/source.hpp"
#include "core/onnx/optimized_model.hpp"
#include "core/onnx/weight_list.hpp"
#include "core/onnx/wire.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

// The models' "w": 256 x 256 in float32.
constexpr std::uint64_t wide_bytes = std::uint64_t{4} * 256 * 256;

class WeightListTest : public WithModels {
 protected:
  static std::string bytes_of(const WeightList& list, const Weight& weight) {
    return read_file(list.sources.at(weight.source)->name()).substr(weight.offset, weight.length);
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
    EXPECT_EQ(list.sources[0]->identity(), file_source(model_path(name))->identity());
  }
}

TEST_F(WeightListTest, TheModelIsAmongTheFilesWhereAllItsWeightsAreExternal) {
  const std::string path = model_path("external");
  const auto files = shareable_weights(path).sources;
  ASSERT_EQ(files.size(), 2U);
  EXPECT_EQ(files[0]->identity(), file_source(path)->identity());
  EXPECT_NE(files[1]->identity(), files[0]->identity());
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

TEST_F(WeightListTest, GivenSourcesTakeThePlaceOfAllFiles) {
  const auto given = memory_source("given", {}, 0);
  const std::string path = model_path("external");
  ExternalFiles files(folder_of(path), path, {{"a", given}});
  EXPECT_EQ(files.find("a"), given);
  EXPECT_TRUE(throws(ErrorKind::fail, {"external.data", "outside"}, [&] { files.find("external.data"); }));
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
  EXPECT_EQ(split.weights.sources[0]->identity(), file_source(folder / "weights.bin")->identity());
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

TEST_F(WeightListTest, ASplitThatIsGivenUpLeavesNothing) {
  const std::string saved = model_path("external");
  std::stop_source stopped;
  stopped.request_stop();
  EXPECT_TRUE(throws(ErrorKind::fail, {"given up"}, [&] {
    split_optimized_model(saved, "", folder_of(saved), folder.path(), {"w"}, stopped.get_token());
  }));
  EXPECT_FALSE(exists("model.onnx") || exists("weights.bin") || exists("shared"));
}

// Indexes a file that is cut where the walk comes to the first initializer.
struct Cutting {
  static bool enter(OnnxMessage /*kind*/, const WireField& /*field*/) { return true; }
  static void leave(OnnxMessage /*kind*/) {}
  void field(OnnxMessage parent, const WireField& field) {
    if (parent == OnnxMessage::initializer && !cut) {
      std::filesystem::resize_file(path, field.end);
      cut = true;
    }
  }
  std::string path;
  bool cut = false;
};

std::string model_of(int initializers, std::size_t bytes) {
  const auto bytes_field = [](int number, const std::string& content) {
    std::string field(1, static_cast<char>(number << 3 | 2));
    std::size_t length = content.size();
    for (; length > 0x7F; length >>= 7U) {
      field.push_back(static_cast<char>((length & 0x7FU) | 0x80U));
    }
    field.push_back(static_cast<char>(length));
    return field + content;
  };
  std::string graph;
  for (int i = 0; i < initializers; ++i) {
    graph += bytes_field(5, bytes_field(8, "w" + std::to_string(i)) + bytes_field(9, std::string(bytes, 'x')));
  }
  return bytes_field(7, graph);
}

TEST(ModelFile, IsIndexedAsItsBytes) {
  const TemporaryFolder folder;
  for (const auto& [count, bytes] :
       {std::pair(0, 0), {3, 1}, {20'000, 30}, {2000, 5000}, {20, 500'000}, {3, 130'000}}) {
    SCOPED_TRACE(bytes);
    std::string text = model_of(count, static_cast<std::size_t>(bytes));
    text += std::string(1, '\x12') + std::string("\x80\x80\x10", 3) + std::string(std::size_t{1} << 18U, 'p');
    const ModelIndex found = index_model(*file_source(folder.write("model", text)));
    const ModelIndex wanted = index_model({reinterpret_cast<const unsigned char*>(text.data()), text.size()});
    ASSERT_EQ(found.initializers.size(), static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < found.initializers.size(); ++i) {
      ASSERT_EQ(found.initializers[i].name, "w" + std::to_string(i));
      ASSERT_EQ(found.initializers[i].offset, wanted.initializers[i].offset);
      ASSERT_EQ(found.initializers[i].length, static_cast<std::uint64_t>(bytes));
    }
  }
}

TEST(ModelFile, ThatIsCutWhileItIsReadIsAnError) {
  const TemporaryFolder folder;
  Cutting cutting{folder.write("model", model_of(20'000, 30))};
  const auto file = file_source(cutting.path);
  ModelBytes bytes(*file);
  EXPECT_TRUE(throws(ErrorKind::weights, {"model", "shortened while it was loaded"},
                     [&] { OnnxWalk<Cutting>(cutting).model(bytes); }));
  EXPECT_TRUE(cutting.cut);
}

TEST(ModelFile, ThatIsNotTheOneThatWasIdentifiedIsAnError) {
  const TemporaryFolder folder;
  const auto model = file_source(folder.write("model", model_of(3, 10)));
  EXPECT_EQ(index_model(*model).initializers.size(), 3U);
  folder.write("model", model_of(4, 10));
  EXPECT_TRUE(throws(ErrorKind::weights, {"model", "changed or replaced"}, [&] { index_model(*model); }));
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
  EXPECT_TRUE(throws(ErrorKind::no_such_file, {"not kept"}, [&] { file_source(folder / "not kept"); }));
}

TEST(OutputFile, LeavesFilesOfOthersAlone) {
  const TemporaryFolder folder;
  folder.write("file", "text");
  EXPECT_TRUE(throws(ErrorKind::fail, {"cannot write", "file"}, [&] { const OutputFile file(folder / "file"); }));
  EXPECT_EQ(read_file(folder / "file"), "text");
}

}  // namespace
}  // namespace ortmulti::tests
