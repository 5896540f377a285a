#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/pool/gpu_runner.hpp"
#include "core/pool/graphs_beside.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

// Without a GPU: when graphs are wanted. tests/gpu has the rest.
class ShapesThatComeAgain : public ::testing::Test {
 protected:
  // Whether one of the next runs of the shape asks for a graph.
  bool wanted_within(std::uint64_t runs, const std::string& key) const {
    for (std::uint64_t i = 0; i < runs; ++i) {
      if (graphs->came_again(key)) {
        return true;
      }
    }
    return false;
  }

  std::vector<std::string> wanted;
  std::shared_ptr<GraphsBeside> graphs = std::make_shared<GraphsBeside>(
      make_session("add"), [this](const auto& /*graphs*/, const std::string& key) { wanted.push_back(key); });
};

TEST_F(ShapesThatComeAgain, AreWantedOnceAtATime) {
  EXPECT_EQ(graphs->take("a"), nullptr);
  EXPECT_FALSE(wanted_within(GraphsBeside::come_again - 1, "a"));
  EXPECT_FALSE(wanted_within(GraphsBeside::come_again - 1, "b"));
  EXPECT_TRUE(graphs->came_again("a"));
  GraphsBeside::Sample sample;
  sample.inputs.emplace_back("x", new_tensor(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, {2, 3}));
  graphs->want("a", std::move(sample));
  EXPECT_EQ(wanted, std::vector<std::string>{"a"});
  EXPECT_EQ(graphs->wanted_shapes().at(0).second, (std::vector<std::int64_t>{2, 3}));
  EXPECT_FALSE(wanted_within(100, "b")) << "one is being made";
  graphs->refuse("a", "no reason");
  EXPECT_FALSE(wanted_within(100, "a"));
  EXPECT_TRUE(wanted_within(1, "b"));
}

TEST_F(ShapesThatComeAgain, AreWantedAnewWhereItWasNotTheTime) {
  EXPECT_TRUE(wanted_within(GraphsBeside::come_again, "a"));
  graphs->not_now("a");
  EXPECT_FALSE(wanted_within(GraphsBeside::come_again - 1, "a"));
  EXPECT_TRUE(graphs->came_again("a"));
}

TEST_F(ShapesThatComeAgain, AreNotWantedAfterRefusalsInARow) {
  for (int i = 0; i < GraphsBeside::most_refusals; ++i) {
    const std::string key = std::to_string(i);
    ASSERT_TRUE(wanted_within(GraphsBeside::come_again, key));
    graphs->refuse(key, "no reason");
  }
  EXPECT_FALSE(wanted_within(100, "another"));
}

}  // namespace
}  // namespace ortmulti::tests
