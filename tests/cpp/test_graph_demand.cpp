#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <string>

#include "core/policy/graph_demand.hpp"
#include "core/policy/numbers.hpp"

namespace ortmulti::tests {
namespace {

// How many sessions are wanted for one of so many shapes in turns, within `runs` of each.
std::size_t wanted_in_turns(GraphDemand& demand, std::size_t shapes, std::size_t runs, std::size_t under_way) {
  for (std::size_t i = 0; i < runs; ++i) {
    for (std::size_t shape = 0; shape < shapes; ++shape) {
      if (const std::size_t sessions = demand.record_run(std::to_string(shape), under_way); sessions > 0) {
        return sessions;
      }
    }
  }
  return 0;
}

TEST(GraphDemandTest, AShapeThatComesAgainWantsOneAfterItsRuns) {
  GraphDemand demand;
  const std::size_t least = *numbers::graphs_runs_before_capture;
  EXPECT_EQ(wanted_in_turns(demand, 1, least - 1, 1), 0);
  EXPECT_EQ(wanted_in_turns(demand, 1, 1, 1), 1);
}

TEST(GraphDemandTest, RareShapesWantNoneHoweverOftenTheyCame) {
  GraphDemand demand;
  EXPECT_EQ(wanted_in_turns(demand, 196, 1000, 9), 0);
  EXPECT_EQ(wanted_in_turns(demand, 8, 40, 9), 1) << "once few are left";
}

TEST(GraphDemandTest, ShapesThatWereAskedForNeedNoShare) {
  GraphDemand demand(1);
  for (int i = 0; i < 48; ++i) {
    EXPECT_EQ(demand.record_run(std::to_string(i), 1), 1);
    demand.postpone(std::to_string(i));
  }
  EXPECT_EQ(wanted_in_turns(demand, 48, 2, 1), 1);
}

TEST(GraphDemandTest, SessionsAreTheShapesShareOfTheRunsUnderWay) {
  for (const auto& [shapes, under_way, sessions] :
       {std::array<std::size_t, 3>{1, 3, 3}, {1, 9, *numbers::graphs_max_sessions}, {2, 5, 3}, {8, 9, 1}, {8, 1, 1}}) {
    GraphDemand demand;
    EXPECT_EQ(wanted_in_turns(demand, shapes, 40, under_way), sessions) << shapes << " shapes, " << under_way;
  }
}

TEST(GraphDemandTest, RunsByGraphsCountInTheShare) {
  GraphDemand demand;
  for (int i = 0; i < 1000; ++i) {
    for (int graph = 0; graph < 50; ++graph) {
      demand.record_graph_run();
    }
    EXPECT_EQ(demand.record_run("rare", 1), 0);
  }
}

TEST(GraphDemandTest, RunsOfLongAgoDoNotKeepAShapeFromItsGraph) {
  GraphDemand demand;
  EXPECT_EQ(demand.record_run("a", 1), 0);
  for (int i = 0; i < 100000; ++i) {
    demand.record_graph_run();
  }
  std::size_t runs = 0;
  while (demand.record_run("a", 1) == 0) {
    ASSERT_LT(++runs, 2 * *numbers::graphs_runs_before_capture);
  }
}

TEST(GraphDemandTest, OneThatWasPutOffNeedsTwiceAsManyRuns) {
  GraphDemand demand;
  const std::size_t least = *numbers::graphs_runs_before_capture;
  demand.postpone("0");
  EXPECT_EQ(wanted_in_turns(demand, 1, 2 * least - 1, 1), 0);
  EXPECT_EQ(wanted_in_turns(demand, 1, 1, 1), 1);
  demand.forget("0");
  EXPECT_EQ(wanted_in_turns(demand, 1, least, 1), 1);
}

TEST(GraphDemandTest, WantsAreWithdrawnByARefusalAndForAllByManyInARow) {
  GraphDemand demand;
  for (std::size_t i = 1; i < *numbers::graphs_max_refusals; ++i) {
    EXPECT_FALSE(demand.refuse(std::to_string(i)));
  }
  EXPECT_TRUE(demand.refused("1"));
  EXPECT_EQ(wanted_in_turns(demand, 1, 100, 1), 1);
  EXPECT_TRUE(demand.refuse("last"));
  EXPECT_EQ(wanted_in_turns(demand, 1, 100, 1), 0);
  demand.succeeded();
  EXPECT_EQ(wanted_in_turns(demand, 1, 100, 1), 1);
}

}  // namespace
}  // namespace ortmulti::tests
