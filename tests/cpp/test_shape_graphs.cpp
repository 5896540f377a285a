#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/policy/numbers.hpp"
#include "core/pool/captured_session.hpp"
#include "core/pool/shape_graphs.hpp"
#include "fake_runner.hpp"
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

// Graphs whose runners do nothing, on a clock of the test's.
class ShapesWithGraphs : public ShapesThatComeAgain {
 protected:
  using Clock = ShapeGraphs::Clock;

  ShapesWithGraphs() {
    graphs = std::make_shared<ShapeGraphs>(
        make_session("add"), ShapeGraphs::Rule(),
        [this](const auto& /*graphs*/, const std::string& key, std::size_t sessions) {
          wanted.emplace_back(key, sessions);
        },
        [this] { return now; });
  }

  void add(const std::string& key, std::size_t sessions, std::uint64_t bytes_of_each = 1) {
    ShapeGraphs::GraphSessions made;
    made.runners.resize(sessions);
    for (auto& runners : made.runners) {
      for (std::size_t i = 0; i < *numbers::graphs_runners; ++i) {
        runners.push_back(std::make_shared<FakeRunner>(Device::cuda(0)));
      }
    }
    made.bytes_of_each = bytes_of_each;
    graphs->add(key, std::move(made));
  }
  // Makes the first graph of a shape.
  void make_graph(const std::string& key, std::size_t sessions = 1, std::uint64_t bytes_of_each = 1) {
    ASSERT_TRUE(wanted_within(2000, key));
    graphs->want(key, {});
    add(key, sessions, bytes_of_each);
  }
  // For so long, this many at once run by the shape's graph, one in each session at a time; each takes `run` seconds.
  // Returns whether another session was wanted.
  bool run_for(std::chrono::milliseconds time, const std::string& key, std::size_t at_once, double run) {
    const Clock::time_point end = now + time;
    std::deque<std::shared_ptr<Runner>> taken;
    while (now < end) {
      const std::size_t sessions = graphs->counts().sessions;  // of this shape alone
      while (taken.size() < std::min(at_once, *numbers::graphs_runners * sessions)) {
        taken.push_back(graphs->take(key));
      }
      now += std::chrono::duration_cast<Clock::duration>(
          std::chrono::duration<double>(run / static_cast<double>(std::min(at_once, sessions))));
      taken.pop_front();
      if (graphs->count_graph_run(key)) {
        return true;
      }
    }
    return false;
  }

  Clock::time_point now = Clock::now();
};

TEST_F(ShapesWithGraphs, GetAnotherSessionOnceTheirRunnersAreAllInUse) {
  make_graph("a");
  EXPECT_FALSE(run_for(std::chrono::seconds(10), "a", 1, 0.001)) << "one runner is idle";
  EXPECT_TRUE(run_for(std::chrono::seconds(1), "a", 2, 0.001));
  graphs->want("a", {});
  add("a", 1);
  EXPECT_EQ(graphs->counts().sessions, 2);
  EXPECT_FALSE(run_for(std::chrono::seconds(3), "a", 2, 0.001));
  EXPECT_EQ(graphs->counts().sessions, 2) << graphs->counts().why_sessions;
  EXPECT_NE(graphs->counts().why_sessions.find("1000 with 1, 2000 with 2"), std::string::npos)
      << graphs->counts().why_sessions;
}

TEST_F(ShapesWithGraphs, LoseASessionThatGainsLessThanATenth) {
  make_graph("a");
  ASSERT_TRUE(run_for(std::chrono::seconds(1), "a", 2, 0.001));
  graphs->want("a", {});
  add("a", 1);
  run_for(std::chrono::seconds(3), "a", 2, 0.00185);  // 1.08 times as many
  EXPECT_EQ(graphs->counts().sessions, 1) << graphs->counts().why_sessions;
}

TEST_F(ShapesWithGraphs, AreServedByAnotherSessionAlsoWhereTheSecondOneGainsNothing) {
  make_graph("a");
  ASSERT_TRUE(run_for(std::chrono::seconds(1), "a", 3, 0.001));
  graphs->want("a", {});
  add("a", 1);
  EXPECT_TRUE(run_for(std::chrono::seconds(1), "a", 3, 0.002)) << "three runs, two sessions";
  graphs->want("a", {});
  add("a", 1);
  run_for(std::chrono::seconds(1), "a", 3, 0.001);
  EXPECT_EQ(graphs->counts().sessions, 3) << graphs->counts().why_sessions;
}

TEST_F(ShapesWithGraphs, HaveTwelveSessionsTogether) {
  for (const char* key : {"a", "b", "c"}) {
    make_graph(key, 4);
  }
  EXPECT_TRUE(wanted_within(2000, "d"));
  graphs->want("d", {});
  EXPECT_EQ(wanted.back(), (std::pair<std::string, std::size_t>{"d", 1}));
  add("d", 1);
  EXPECT_FALSE(run_for(std::chrono::seconds(3), "d", 2, 0.001)) << "there are thirteen";
}

}  // namespace
}  // namespace ortmulti::tests
