#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>

#include "core/cuda/device_sync_guard.hpp"
#include "core/ort/planned_shapes.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

using Work = DeviceSyncGuard::Work;

class ThePlansOfASession : public testing::Test {
 protected:
  using Run = PlannedShapes::Run;

  // Its own in each test, since what is under way is the process's.
  ThePlansOfASession() : gpu(Device::cuda(2000 + next++)) {}

  std::unique_ptr<Run> begun(std::uint64_t shapes) {
    auto run = std::make_unique<Run>(plans, shapes);
    if (run->makes_plans()) {
      run->guard = std::make_shared<const DeviceSyncGuard>(gpu, Work::may_capture);
    }
    EXPECT_TRUE(run->begin());
    return run;
  }
  static void end(std::unique_ptr<Run>& run) {
    run->succeeded();
    run.reset();
  }
  void run(std::uint64_t shapes) {
    auto all_of_it = begun(shapes);
    end(all_of_it);
  }
  bool are_planned(std::uint64_t shapes) { return !Run(plans, shapes).makes_plans(); }
  std::future<void> free_a_session() {
    return std::async(std::launch::async, [this] { const DeviceSyncGuard guard(gpu, Work::waits_for_device); });
  }
  static bool waits(const std::future<void>& freeing) {
    return freeing.wait_for(std::chrono::milliseconds(20)) == std::future_status::timeout;
  }

  inline static int next = 0;
  const Device gpu;
  PlannedShapes plans;
};

TEST_F(ThePlansOfASession, AreThoseOfTheLastShapes) {
  EXPECT_FALSE(are_planned(1));
  run(1);
  EXPECT_TRUE(are_planned(1));
  run(2);
  EXPECT_TRUE(are_planned(2));
  EXPECT_FALSE(are_planned(1));
}

TEST_F(ThePlansOfASession, AreNotThereBeforeTheRunHasSucceeded) {
  auto failing = begun(1);
  EXPECT_FALSE(are_planned(1));
  failing.reset();
  EXPECT_FALSE(are_planned(1));
}

// One with other shapes passes it, and it makes the plans of its nodes anew.
TEST_F(ThePlansOfASession, MayBeMadeInARunOfKnownShapesBesideOneOfOthers) {
  run(1);
  auto known = begun(1);
  EXPECT_EQ(known->guard, nullptr);
  auto other = begun(2);
  auto freeing = free_a_session();
  EXPECT_TRUE(waits(freeing));
  end(other);
  EXPECT_TRUE(waits(freeing)) << "a session is freed while the run of known shapes may make plans";
  end(known);
  freeing.get();
}

TEST_F(ThePlansOfASession, AreOfNoShapesAfterRunsOfSeveralBesideEachOther) {
  run(1);
  auto one = begun(1);
  auto two = begun(2);
  EXPECT_FALSE(are_planned(1));
  end(one);
  EXPECT_FALSE(are_planned(1));
  end(two);
  EXPECT_FALSE(are_planned(1));
  EXPECT_FALSE(are_planned(2));
  run(2);
  EXPECT_TRUE(are_planned(2));
}

TEST_F(ThePlansOfASession, AreMadeByARunThatWouldHaveFoundThemWhenItAsked) {
  run(1);
  Run asked(plans, 1);
  EXPECT_FALSE(asked.makes_plans());
  const auto other = begun(2);
  EXPECT_FALSE(asked.begin());
  EXPECT_TRUE(asked.makes_plans());
  asked.guard = std::make_shared<const DeviceSyncGuard>(gpu, Work::may_capture);
  EXPECT_TRUE(asked.begin());
}

TEST_F(ThePlansOfASession, AreNoConcernOfARunThatCapturesNothing) {
  run(1);
  auto replay = begun(0);
  EXPECT_EQ(replay->guard, nullptr);
  run(1);
  end(replay);
  EXPECT_TRUE(are_planned(1));
}

}  // namespace
}  // namespace ortmulti::tests
