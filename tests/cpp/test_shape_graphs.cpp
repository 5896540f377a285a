#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/policy/numbers.hpp"
#include "core/pool/captured_runner.hpp"
#include "core/pool/shape_graphs.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

// Without a GPU: when graphs are wanted. tests/gpu has the rest.
class ShapesThatComeAgain : public ::testing::Test {
 protected:
  // Whether one of the next runs of the shape asks for a graph.
  bool wanted_within(std::uint64_t runs, const std::string& key) const {
    for (std::uint64_t i = 0; i < runs; ++i) {
      const auto counted = graphs->ordinary_run();
      if (graphs->count_ordinary_run(key)) {
        return true;
      }
    }
    return false;
  }

  std::vector<std::pair<std::string, std::size_t>> wanted;
  std::shared_ptr<ShapeGraphs> make(ShapeGraphs::Rule rule) {
    return std::make_shared<ShapeGraphs>(make_session("add"), rule,
                                         [this](const auto& /*graphs*/, const std::string& key, std::size_t sessions) {
                                           wanted.emplace_back(key, sessions);
                                         });
  }
  const std::uint64_t runs_before_capture = ShapeGraphs::Rule().runs_before_capture;
  std::shared_ptr<ShapeGraphs> graphs = make({});
};

TEST_F(ShapesThatComeAgain, AreWantedAtOnceAndAwaitedWhereTheyWereAskedFor) {
  graphs = make({1, 2});
  EXPECT_TRUE(wanted_within(1, "a"));
  auto awaited = std::async(std::launch::async, [this] { return graphs->take("a"); });
  EXPECT_EQ(graphs->take("b"), nullptr);
  EXPECT_EQ(awaited.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  graphs->not_made("a", "no reason");
  EXPECT_EQ(awaited.get(), nullptr);
  EXPECT_TRUE(wanted_within(1, "b"));
  awaited = std::async(std::launch::async, [this] { return graphs->take("b"); });
  static_cast<void>(graphs->drop_all());
  EXPECT_EQ(awaited.get(), nullptr);
}

// What cuDNN compiled for one shape goes with the next one, and a graph would still have it.
TEST(ASessionThatCaptures, RunsOneShapeOnly) {
  OneShape shape;
  shape.use("a");
  shape.use("a");
  EXPECT_TRUE(throws(ErrorKind::fail, {"one shape only"}, [&] { shape.use("b"); }));
}

TEST_F(ShapesThatComeAgain, AreWantedOnceAtATime) {
  EXPECT_EQ(graphs->take("a"), nullptr);
  EXPECT_FALSE(wanted_within(runs_before_capture - 1, "a"));
  EXPECT_FALSE(wanted_within(runs_before_capture - 1, "b"));
  EXPECT_TRUE(wanted_within(1, "a"));
  ShapeGraphs::Sample sample;
  sample.inputs.emplace_back("x", new_tensor(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, {2, 3}));
  graphs->want("a", std::move(sample));
  EXPECT_EQ(wanted, (std::vector<std::pair<std::string, std::size_t>>{{"a", 1}}));
  EXPECT_EQ(graphs->wanted_shapes().at(0).second, (std::vector<std::int64_t>{2, 3}));
  EXPECT_FALSE(wanted_within(100, "b")) << "one is being made";
  graphs->not_made("a", "no reason");
  EXPECT_FALSE(wanted_within(100, "a"));
  graphs->not_now("a", "nor is there room");  // for another session of a graph that failed meanwhile
  EXPECT_FALSE(wanted_within(100, "a"));
  EXPECT_TRUE(wanted_within(1, "b"));
}

TEST_F(ShapesThatComeAgain, AreWantedAnewWhereItWasNotTheTime) {
  EXPECT_TRUE(wanted_within(runs_before_capture, "a"));
  graphs->not_now("a", "no room");
  EXPECT_EQ(graphs->counts().why_not, "no room");
  EXPECT_FALSE(wanted_within(2 * runs_before_capture - 1, "a"));
  EXPECT_TRUE(graphs->count_ordinary_run("a"));
}

TEST_F(ShapesThatComeAgain, AreNotPutOffByAMakingThatWasDropped) {
  EXPECT_TRUE(wanted_within(runs_before_capture, "a"));
  EXPECT_FALSE(graphs->cancelled());
  EXPECT_FALSE(graphs->drop_all()) << "there was none yet";
  EXPECT_TRUE(graphs->cancelled());
  graphs->not_made("a", "dropped");
  EXPECT_FALSE(graphs->cancelled());
  EXPECT_EQ(graphs->counts().why_not, "");
  EXPECT_TRUE(wanted_within(runs_before_capture, "a"));
}

TEST_F(ShapesThatComeAgain, OfAllRunsGetAsManySessionsAsWereUnderWayAtOnce) {
  for (const std::size_t others : {1, 5}) {
    const std::string key = std::to_string(others);
    {
      std::vector<std::unique_ptr<decltype(graphs->ordinary_run())>> more;
      more.reserve(others);
      for (std::size_t i = 0; i < others; ++i) {
        more.emplace_back(new auto(graphs->ordinary_run()));
      }
      EXPECT_FALSE(wanted_within(1, key));
    }
    ASSERT_TRUE(wanted_within(runs_before_capture, key));
    graphs->want(key, {});
    EXPECT_EQ(wanted.back(), std::make_pair(key, std::min(others + 1, *numbers::graphs_max_sessions)));
    graphs->not_made(key, "no reason");
  }
}

TEST_F(ShapesThatComeAgain, AreNotWantedAfterRefusalsInARow) {
  for (std::size_t i = 0; i < *numbers::graphs_max_refusals; ++i) {
    const std::string key = std::to_string(i);
    ASSERT_TRUE(wanted_within(runs_before_capture, key));
    graphs->not_made(key, "no reason");
  }
  EXPECT_FALSE(wanted_within(100, "another"));
}

}  // namespace
}  // namespace ortmulti::tests
