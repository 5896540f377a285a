// Which models of a device are awake, and which sleep for another one.

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "core/policy/residency_policy.hpp"

namespace ortmulti::tests {
namespace {

using Policy = ResidencyPolicy;
using Kind = Policy::Decision::Kind;

class Residency : public testing::Test {
 protected:
  static Policy::Model model(std::uint64_t weights, SleepLevel level = SleepLevel::awake, std::uint64_t kept = 0) {
    Policy::Model made;
    made.bytes = weights + kept;
    made.sleeps = {{SleepLevel::weights, {kept, 0.01}}, {SleepLevel::session, {0, 0.1}}};
    made.level = level;
    return made;
  }
  Policy::Id add(std::uint64_t weights, SleepLevel level = SleepLevel::awake, std::uint64_t kept = 0) {
    return policy.add(model(weights, level, kept), "'m'", 0);
  }
  // Requests that came until `now`.
  void arrive(Policy::Id id, std::uint64_t requests, double now) { policy.observe(id, {requests, 0, 0, 0.004}, now); }
  static std::vector<Policy::Id> models(const Policy::Decision& decision) {
    std::vector<Policy::Id> ids;
    ids.reserve(decision.evictions.size());
    for (const auto& eviction : decision.evictions) {
      ids.push_back(eviction.model);
    }
    return ids;
  }

  Policy policy{100};
};

TEST_F(Residency, AModelThatFitsWakesAndHasItsMemoryFromThenOn) {
  add(40);
  const auto second = add(40, SleepLevel::weights, 5);
  const auto third = add(20, SleepLevel::weights);
  EXPECT_EQ(policy.used(), 45);
  EXPECT_EQ(policy.decide(second, 1).kind, Kind::wake);
  EXPECT_EQ(policy.used(), 85);
  EXPECT_EQ(policy.decide(third, 1).kind, Kind::evict) << "the second has been promised its memory";
  policy.woke(second, 2, 0.02);
  EXPECT_EQ(policy.model(second).level, SleepLevel::awake);
  EXPECT_GT(policy.model(second).sleeps.at(SleepLevel::weights).wake, 0.01);
}

TEST_F(Residency, TimesMayBeNegative) {
  const auto first = policy.add(model(60), "'m'", -100);
  const auto wanted = policy.add(model(60, SleepLevel::weights), "'m'", -100);
  EXPECT_EQ(models(policy.decide(wanted, -99)), std::vector{first});
}

TEST_F(Residency, TheOneWithFewestRequestsSleeps) {
  const auto busy = add(50);
  const auto rare = add(50);
  const auto wanted = add(50, SleepLevel::weights);
  arrive(busy, 500, 10);
  arrive(rare, 5, 10);
  const auto decision = policy.decide(wanted, 10);
  EXPECT_EQ(decision.kind, Kind::evict);
  EXPECT_EQ(models(decision), std::vector{rare});
  EXPECT_EQ(decision.evictions.front().to, SleepLevel::weights);
}

TEST_F(Residency, OldRequestsAreForgotten) {
  const auto once = add(50);
  const auto now = add(50);
  const auto wanted = add(50, SleepLevel::weights);
  arrive(once, 1000, 10);
  arrive(now, 0, 10);
  arrive(once, 1000, 300);
  arrive(now, 100, 300);
  EXPECT_EQ(models(policy.decide(wanted, 300)), std::vector{once});
}

TEST_F(Residency, NoMoreSleepThanMust) {
  const auto small = add(10);
  const auto large = add(90);
  const auto wanted = add(80, SleepLevel::weights);
  arrive(large, 10, 10);  // the small one is the cheapest, and is not needed beside the large one
  arrive(small, 0, 10);
  EXPECT_EQ(models(policy.decide(wanted, 10)), std::vector{large});
}

TEST_F(Residency, AModelWithRequestsThatWaitStaysAwakeForAsLongAsItsWakeTook) {
  const auto queued = add(100, SleepLevel::weights);
  const auto wanted = add(50, SleepLevel::weights);
  ASSERT_EQ(policy.decide(queued, 1).kind, Kind::wake);
  policy.woke(queued, 2, 0.01);
  policy.observe(queued, {10, 1, 9, 0.004}, 2.005);
  const auto early = policy.decide(wanted, 2.005);
  EXPECT_EQ(early.kind, Kind::wait);
  ASSERT_TRUE(early.until);
  EXPECT_NEAR(*early.until, 2.01, 1e-9);
  EXPECT_EQ(models(policy.decide(wanted, *early.until)), std::vector{queued});
}

TEST_F(Residency, ASessionThatNobodyUsesIsClosedBeforeABusyModelSleeps) {
  const auto busy = add(60);
  const auto asleep = add(60, SleepLevel::weights, 40);
  const auto wanted = add(25, SleepLevel::weights);
  arrive(busy, 500, 10);
  arrive(asleep, 1, 10);
  EXPECT_EQ(models(policy.decide(wanted, 20)), std::vector{busy}) << "it was used a moment ago";
  arrive(busy, 50'000, 1000);
  arrive(asleep, 1, 1000);
  const auto decision = policy.decide(wanted, 1000);
  ASSERT_EQ(models(decision), std::vector{asleep});
  EXPECT_EQ(decision.evictions.front().to, SleepLevel::session);
  policy.falls(decision.evictions.front());
  EXPECT_EQ(policy.decide(wanted, 1000).kind, Kind::wait) << "what falls asleep suffices";
  policy.fell(asleep, SleepLevel::session);
  EXPECT_EQ(policy.decide(wanted, 1000).kind, Kind::wake);
}

TEST_F(Residency, SessionsAreClosedWhereNothingElseMakesRoom) {
  const auto asleep = add(40, SleepLevel::weights, 50);
  const auto wanted = add(80, SleepLevel::weights);
  arrive(asleep, 1, 10);
  EXPECT_EQ(models(policy.decide(wanted, 10)), std::vector{asleep});
}

TEST_F(Residency, AModelWithoutALevelGoesToTheNextOne) {
  const auto closed = add(100);
  const auto wanted = add(50, SleepLevel::weights);
  policy.set_kept(closed, SleepLevel::weights, std::nullopt);
  const auto decision = policy.decide(wanted, 1);
  ASSERT_EQ(models(decision), std::vector{closed});
  EXPECT_EQ(decision.evictions.front().to, SleepLevel::session);
  policy.set_kept(closed, SleepLevel::session, std::nullopt);
  EXPECT_EQ(policy.decide(wanted, 1).kind, Kind::impossible);
}

TEST_F(Residency, ALevelThatWouldGiveNothingBackIsPassedOver) {
  auto measured_wrong = model(60);
  measured_wrong.sleeps.at(SleepLevel::weights).bytes = measured_wrong.bytes;
  const auto awake = policy.add(measured_wrong, "'m'", 0);
  const auto wanted = add(60, SleepLevel::weights);
  const auto decision = policy.decide(wanted, 10);
  ASSERT_EQ(models(decision), std::vector{awake}) << "the wanted one would wait for ever";
  EXPECT_EQ(decision.evictions.front().to, SleepLevel::session);
}

TEST_F(Residency, WhatIsPinnedOrWaitsToWakeCannotMakeRoom) {
  const auto pinned = add(60);
  policy.pin(pinned, true);
  const auto in_line = add(50, SleepLevel::weights, 20);
  policy.observe(in_line, {1, 0, 1, 0}, 1);
  const auto wanted = add(50, SleepLevel::weights);
  EXPECT_EQ(policy.decide(wanted, 1).kind, Kind::impossible);
  policy.observe(in_line, {1, 0, 0, 0}, 2);
  EXPECT_EQ(policy.decide(wanted, 2).kind, Kind::impossible) << "its 20 do not suffice";
  policy.pin(pinned, false);
  EXPECT_EQ(policy.decide(wanted, 2).kind, Kind::evict);
}

TEST_F(Residency, ASleepThatWasGivenUpIsNotTriedAgainAtOnceAndThenWithMorePatience) {
  const auto first = add(100);
  const auto wanted = add(50, SleepLevel::weights);
  const auto decision = policy.decide(wanted, 1);
  policy.falls(decision.evictions.at(0));
  EXPECT_EQ(policy.patience(first), 1);
  policy.stayed(first, 2);
  const auto again = policy.decide(wanted, 2);
  EXPECT_EQ(again.kind, Kind::wait);
  EXPECT_EQ(again.until, 3);
  EXPECT_EQ(policy.used(), 100);
  EXPECT_EQ(policy.patience(first), 2);
  policy.falls({first, SleepLevel::weights});
  policy.fell(first, SleepLevel::weights);
  EXPECT_EQ(policy.patience(first), 1);
}

// On a clock of the test's own: runs that overlap, so that there is always one under way while others may begin.
TEST_F(Residency, RunsHoldUpAWakeForThreeTimesTheLongestAndASecondForEachTry) {
  for (const double longest : {0.3, 1.0, 1.5, 4.0, 60.0, 1000.0}) {
    Policy each(100);
    const auto busy = each.add(model(60), "'busy'", 0);
    const auto wanted = each.add(model(60, SleepLevel::weights), "'wanted'", 0);
    double now = 0;
    int tries = 0;
    for (bool asleep = false; !asleep;) {
      ASSERT_LT(now, 1e6) << "it waits for ever";
      each.observe(busy, {0, 2, 5, longest}, now);
      const auto decision = each.decide(wanted, now);
      if (decision.kind == Kind::wait) {
        now = decision.until.value_or(1e9);
        continue;
      }
      ASSERT_EQ(models(decision), std::vector{busy});
      each.falls(decision.evictions.front());
      ++tries;
      asleep = longest <= each.patience(busy);  // a run has just begun
      now += std::min(longest, each.patience(busy));
      if (asleep) {
        each.fell(busy, SleepLevel::weights);
      } else {
        each.stayed(busy, now);
      }
    }
    EXPECT_LE(now, 3 * longest + tries) << longest;
    EXPECT_EQ(each.decide(wanted, now).kind, Kind::wake);
  }
}

TEST_F(Residency, WhatIsLoadedOrFailedToSleepIsWaitedForUnlessItFailsAgainAndAgain) {
  const auto failing = add(60);
  Policy::Model load;
  load.bytes = 40;
  load.loading = true;
  const auto room = policy.add(load, "'room'", 0);
  const auto wanted = add(40, SleepLevel::weights);
  policy.refused(failing, 1);
  const auto decision = policy.decide(wanted, 1);
  EXPECT_EQ(decision.kind, Kind::wait);
  EXPECT_EQ(decision.until, 2);
  policy.refused(failing, 2);
  policy.refused(failing, 3);
  EXPECT_EQ(policy.decide(wanted, 3).kind, Kind::wait) << "the load will end";
  policy.remove(room);
  const auto second = add(40);
  policy.pin(second, true);
  EXPECT_EQ(policy.decide(wanted, 4).kind, Kind::impossible);
  EXPECT_EQ(policy.decide(wanted, 13).kind, Kind::evict) << "it is asked again some time";
  policy.fell(failing, SleepLevel::weights);
  policy.refused(failing, 20);
  EXPECT_EQ(policy.decide(wanted, 20).kind, Kind::wake);
}

TEST_F(Residency, AWakeThatTakesNothingFromTheFirstInLineMayPass) {
  const auto busy = add(60);
  const auto first = add(60, SleepLevel::weights);
  const auto small = add(40, SleepLevel::weights);
  const auto larger = add(41, SleepLevel::weights);
  EXPECT_FALSE(policy.may_pass(small, first)) << "nothing will make room for the first one";
  policy.falls(policy.decide(first, 1).evictions.front());
  EXPECT_TRUE(policy.may_pass(small, first));
  EXPECT_FALSE(policy.may_pass(larger, first));
  policy.fell(busy, SleepLevel::weights);
  EXPECT_TRUE(policy.may_pass(small, first)) << "there is room for both";
  policy.grant(small);
  EXPECT_FALSE(policy.may_pass(larger, first));
}

TEST_F(Residency, MemoryOfNobodyCountsAndOthersSleepForIt) {
  add(50);
  const auto wanted = add(40, SleepLevel::weights);
  policy.set_other(30);
  EXPECT_EQ(policy.used(), 80);
  EXPECT_EQ(policy.decide(wanted, 1).kind, Kind::evict);
  policy.set_other(0);
  EXPECT_EQ(policy.decide(wanted, 1, 10).kind, Kind::evict) << "the device has less than the budget";
  EXPECT_EQ(policy.decide(wanted, 1).kind, Kind::wake);
}

}  // namespace
}  // namespace ortmulti::tests
