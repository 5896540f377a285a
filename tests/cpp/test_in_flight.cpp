#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/policy/in_flight.hpp"
#include "core/policy/launch_times.hpp"
#include "fake_runner.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A device that answers so many requests a second, by how many are under way.
class Measured : public testing::Test {
 protected:
  void answer_for(std::chrono::milliseconds time, std::size_t waiting = 1) {
    const auto end = now + time;
    while (now < end) {
      now += std::chrono::duration_cast<InFlight::Clock::duration>(
          std::chrono::duration<double>(1 / rate(static_cast<double>(in_flight.limit()))));
      const std::size_t more = clients - std::min(clients, in_flight.limit());
      if (in_flight.record(now, 1, clients == 0 ? waiting : more, most)) {
        ++asked;
        in_flight.try_more(now, why_not);
      }
      largest = std::max(largest, in_flight.limit());
    }
  }

  std::function<double(double)> rate = [](double limit) { return 200 * std::min(limit, 6.0); };
  InFlight::Clock::time_point now{seconds(1000)};
  InFlight in_flight{3};
  std::size_t clients = 0;  // of a closed loop
  std::size_t most = 12;
  std::string why_not;
  int asked = 0;
  std::size_t largest = 0;
};

TEST_F(Measured, AsManyAreUnderWayAsGainAnswers) {
  EXPECT_EQ(in_flight.limit(), 3U);
  answer_for(seconds(3));
  EXPECT_EQ(in_flight.limit(), 6U);
  EXPECT_EQ(largest, 12U) << "two steps beyond";
  EXPECT_NE(in_flight.why().find("1200 with 6"), std::string::npos) << in_flight.why();
}

TEST_F(Measured, SmallGainsOfSeveralStepsAddUp) {
  rate = [](double limit) { return 1000 * (limit < 9 ? 1 + 0.013 * (limit - 3) : 1.2); };  // 4: 1.3%, 6: 2.6% more
  answer_for(seconds(3));
  EXPECT_EQ(in_flight.limit(), 9U) << in_flight.why();
}

TEST_F(Measured, TheFewestOfThoseThatDoAsWellAreTaken) {
  rate = [](double) { return 500; };
  answer_for(seconds(3));
  EXPECT_EQ(in_flight.limit(), 3U);
  EXPECT_EQ(largest, 6U);
}

TEST_F(Measured, WhatCostsMoreHasToGainMore) {
  rate = [](double limit) { return 1000 + 40 * limit; };
  in_flight = InFlight(3, 0, 1.1);
  answer_for(seconds(3));
  EXPECT_EQ(in_flight.limit(), 9U) << "12 answer 1.09 times as many: " << in_flight.why();
  rate = [](double limit) { return 1000 + 10 * limit; };
  in_flight = InFlight(3, 0, 1.1);
  answer_for(seconds(3));
  EXPECT_EQ(in_flight.limit(), 3U) << in_flight.why();
}

TEST_F(Measured, TimesWithoutRequestsThatWaitAreNotMeasured) {
  answer_for(seconds(3), 0);
  EXPECT_EQ(in_flight.limit(), 3U);
  EXPECT_EQ(in_flight.why(), "");
  for (int i = 0; i < 100; ++i) {
    answer_for(milliseconds(150));
    answer_for(milliseconds(10), 0);
  }
  EXPECT_EQ(in_flight.limit(), 3U) << "no time was long enough";
}

TEST_F(Measured, TimesInWhichTheDeviceDidSomethingElseAreLeftOut) {
  const auto usual = rate;
  answer_for(milliseconds(150));
  for (int i = 0; i < 30; ++i) {  // as graphs are made
    rate = [](double limit) { return limit > 3 ? 50 : 1000; };
    in_flight.leave_out();
    answer_for(milliseconds(150));
  }
  EXPECT_EQ(in_flight.why(), "");
  rate = usual;
  in_flight.leave_out();
  answer_for(seconds(3));
  EXPECT_EQ(in_flight.limit(), 6U);
}

TEST_F(Measured, TheFirstLargerOneCanBeSaid) {
  in_flight = InFlight(1, 8);
  std::set<std::size_t> tried;
  rate = [&](double limit) {
    tried.insert(static_cast<std::size_t>(limit));
    return limit == 1 ? 100 : 30 * std::min(limit, 8.0);
  };
  answer_for(seconds(3));
  EXPECT_EQ(tried, (std::set<std::size_t>{1, 8, 12}));
  EXPECT_EQ(in_flight.limit(), 8U);
}

TEST_F(Measured, TheFirstRunsWithMoreSayNothingOfThem) {
  in_flight = InFlight(1, 3);
  most = 3;
  int slow = 0;  // runs, as sessions take memory in them
  const auto end = now + seconds(3);
  while (now < end) {
    now += slow > 0 ? milliseconds(80) : in_flight.limit() == 1 ? microseconds(2500) : microseconds(2000);
    slow -= slow > 0 ? 1 : 0;
    if (in_flight.record(now, 30, 1, most)) {  // joined
      in_flight.try_more(now, "");
      slow = 3;
    }
  }
  EXPECT_EQ(in_flight.limit(), 3U) << in_flight.why();
  EXPECT_EQ(in_flight.why(), "answers a second: 12000 with 1, 15000 with 3");
}

TEST_F(Measured, ItIsMeasuredForTheTimeThatIsSaid) {
  in_flight = InFlight(1, 3, *numbers::in_flight_min_gain, seconds(1));
  rate = [](double limit) { return 1000 * limit; };
  answer_for(milliseconds(990));
  EXPECT_EQ(largest, 1U);
  answer_for(milliseconds(20));
  EXPECT_EQ(largest, 3U);
}

TEST_F(Measured, ALargerLoadIsMetSoon) {
  rate = [&](double limit) { return 100 * std::min(limit, static_cast<double>(clients)); };
  clients = 4;
  answer_for(seconds(600));
  ASSERT_EQ(in_flight.limit(), 4U) << in_flight.why();
  clients = 64;
  answer_for(milliseconds(700));
  EXPECT_GT(in_flight.limit(), 4U) << "it is being chosen again";
  answer_for(seconds(3));
  EXPECT_EQ(in_flight.limit(), 12U) << in_flight.why();
  const std::string chosen = in_flight.why();
  clients = 80;
  answer_for(seconds(4));
  EXPECT_EQ(in_flight.why(), chosen) << "a few more are no other load";
}

TEST_F(Measured, NoMoreAreTriedThanThereAre) {
  clients = 5;
  answer_for(seconds(600));
  EXPECT_EQ(largest, 6U) << "with which nobody waits";
}

TEST_F(Measured, WhatIsTriedMayLeaveNobodyWaiting) {
  rate = [](double) { return 500; };
  while (in_flight.limit() == 3) {
    answer_for(milliseconds(10));
  }
  answer_for(seconds(1), 0);
  EXPECT_EQ(in_flight.limit(), 3U) << in_flight.why();
}

TEST_F(Measured, ElementsCountWhereRequestsDifferInLength) {
  rate = [](double limit) { return 100 * std::min(limit, 6.0); };
  const auto end = now + seconds(3);
  while (now < end) {  // long ones where more are under way: fewer answers, more elements
    const auto limit = static_cast<double>(in_flight.limit());
    now += std::chrono::duration_cast<InFlight::Clock::duration>(std::chrono::duration<double>(limit / rate(limit)));
    if (in_flight.record(now, 1, 1, most, in_flight.limit())) {
      in_flight.try_more(now, "");
    }
  }
  EXPECT_EQ(in_flight.limit(), 6U);
  EXPECT_EQ(in_flight.why().find("elements a second: 300 with 3"), 0U) << in_flight.why();
}

TEST_F(Measured, ASessionMoreHasToGainMore) {
  in_flight = InFlight(1, 8);
  rate = [](double limit) { return limit == 1 ? 100 : 108; };
  answer_for(seconds(2));
  EXPECT_EQ(in_flight.limit(), 1U) << in_flight.why();
  EXPECT_TRUE(in_flight.take_stayed());
  EXPECT_FALSE(in_flight.take_stayed());
  largest = 0;
  answer_for(seconds(25));
  EXPECT_EQ(largest, 1U) << "it is not soon tried again";
  rate = [](double limit) { return limit == 1 ? 100 : 115; };
  answer_for(seconds(60));
  EXPECT_EQ(in_flight.limit(), 8U) << in_flight.why();
  EXPECT_FALSE(in_flight.take_stayed());
}

TEST_F(Measured, ItIsMeasuredAgainAndFollowsWhatChanged) {
  answer_for(seconds(3));
  ASSERT_EQ(in_flight.limit(), 6U);
  rate = [](double) { return 500; };
  answer_for(seconds(60));
  EXPECT_EQ(in_flight.limit(), 3U);
  rate = [](double limit) { return 100 * limit; };
  answer_for(seconds(600));
  EXPECT_EQ(in_flight.limit(), 12U);
}

TEST_F(Measured, NoMoreThanTheLimitAndTheMemoryAllow) {
  most = 4;
  answer_for(seconds(3));
  EXPECT_EQ(largest, 4U);
  most = 12;
  why_not = "no memory";
  answer_for(seconds(60));
  EXPECT_EQ(largest, 4U);
  EXPECT_NE(in_flight.why().find("no memory"), std::string::npos) << in_flight.why();
}

TEST_F(Measured, ARunThatLackedMemoryEndsIt) {
  EXPECT_FALSE(in_flight.give_way()) << "no more than at first were ever under way";
  answer_for(seconds(3));
  EXPECT_TRUE(in_flight.give_way());
  EXPECT_TRUE(in_flight.give_way()) << "other requests may have lacked it too";
  EXPECT_EQ(in_flight.limit(), 3U);
  largest = 0;
  answer_for(seconds(600));
  EXPECT_EQ(largest, 3U);
}

class PoolInFlight : public PoolWithFakes {
 protected:
  PoolInFlight() {
    Pool::Options options;
    options.now = [this] { return now.load(); };
    options.cores = 16;
    pool = Pool::make(options);
    for (int i = 0; i < 12; ++i) {
      runners.push_back(std::make_shared<FakeRunner>(Device::cuda(0), this));
    }
  }
  // Adds the session, of which two requests may be under way at first, and has it answer so many that wait.
  void answer(std::size_t requests, const std::function<void(Request&)>& action) {
    for (const auto& runner : runners) {
      runner->hold();
      runner->action = action;
    }
    pool->add({runners.begin(), runners.end()}, 2);
    for (std::size_t i = 0; i < requests; ++i) {
      submit();
    }
    EXPECT_EQ(pool->stats().devices[0].busy, 2U);
    EXPECT_EQ(pool->stats().devices[0].in_flight, 2U);
    EXPECT_EQ(pool->stats().waiting, requests - 2);
    Request here;
    EXPECT_FALSE(pool->run_here(here)) << "others are idle, but are not to run";
    for (const auto& runner : runners) {
      runner->release();
    }
    answers.wait_for(requests);
  }
  void take_time(milliseconds time) {
    for (auto before = now.load(); !now.compare_exchange_weak(before, before + time);) {
    }
  }

  std::atomic<Pool::Clock::time_point> now{Pool::Clock::time_point(seconds(1000))};
  std::vector<std::shared_ptr<FakeRunner>> runners;
};

TEST_F(PoolInFlight, SoManyAreUnderWayAndTheOthersWait) {
  answer(5, {});
  std::size_t runs = 0;
  for (const auto& runner : runners) {
    runs += runner->runs().size();
  }
  EXPECT_EQ(runs, 5U);
}

TEST_F(PoolInFlight, WhatIsWarmedUpAndWhatADeviceBeginsWithAgain) {
  pool->add({runners.begin(), runners.begin() + 6}, 2);
  EXPECT_EQ(pool->runners(), (std::vector<std::shared_ptr<Runner>>{runners[0], runners[1]}));
  EXPECT_TRUE(pool->remove(Device::cuda(0), Pool::Clock::now() + std::chrono::hours(1)));
  pool->expect(Device::cuda(0), 1);
  pool->add({runners.begin() + 6, runners.end()}, 2);
  EXPECT_EQ(pool->stats().devices[0].in_flight, 2U);
}

TEST_F(PoolInFlight, RunsThatFailAreNoAnswers) {
  answer(300, [this](Request& /*request*/) {
    take_time(milliseconds(20));
    throw Error(ErrorKind::invalid_argument, "wrong");
  });
  EXPECT_EQ(pool->stats().devices[0].failed, 300U);
  EXPECT_EQ(pool->stats().devices[0].in_flight, 2U);
  EXPECT_EQ(pool->stats().devices[0].why_in_flight, "");
}

// Answers come the faster the more are under way.
TEST_F(PoolInFlight, ItGrowsWhileRequestsWaitAndGivesWayWhereMemoryIsShort) {
  std::atomic<bool> short_of_memory{false};
  answer(1000, [&](Request& /*request*/) {
    const std::size_t under_way = pool->stats().devices[0].in_flight;
    take_time(milliseconds(20) / static_cast<int>(under_way));
    if (short_of_memory && under_way > 2) {
      throw Error(ErrorKind::out_of_memory, "no memory");
    }
  });
  EXPECT_GE(pool->stats().devices[0].in_flight, 6U) << pool->stats().devices[0].why_in_flight;
  short_of_memory = true;
  for (int i = 0; i < 100; ++i) {
    submit();
  }
  answers.wait_for(1100);
  const DeviceStats stats = pool->stats().devices[0];
  EXPECT_EQ(stats.in_flight, 2U);
  EXPECT_EQ(stats.done, 1100U);
  EXPECT_GE(stats.retried, 1U);
  EXPECT_NE(stats.why_in_flight.find("memory was short with"), std::string::npos) << stats.why_in_flight;
}

}  // namespace

TEST(LaunchTimes, WhatWasLaunchedEndsBehindWhatIsUnderWay) {
  LaunchTimes times;
  LaunchTimes::Clock::time_point now{seconds(1000)};
  const int small = 0;
  const int large = 0;
  const auto unknown = times.begin(now, &small);
  EXPECT_LE(unknown.expected_end, now) << "nothing is known";
  times.end(now + milliseconds(2), unknown);
  const auto other = times.begin(now + milliseconds(10), &large);
  times.end(now + milliseconds(15), other);
  now += milliseconds(20);
  const auto first = times.begin(now, &small);
  EXPECT_EQ(first.expected_end, now + milliseconds(2));
  const auto second = times.begin(now + milliseconds(1), &large);
  EXPECT_EQ(second.expected_end, now + milliseconds(7));
  times.end(now + milliseconds(3), first);  // later than expected
  const auto third = times.begin(now + milliseconds(3), &small);
  EXPECT_GE(third.expected_end, now + milliseconds(10));
  EXPECT_LT(third.expected_end, now + milliseconds(11));
  times.end(now + milliseconds(8), second);
  times.end(now + milliseconds(10), third);
  const auto alone = times.begin(now + seconds(1), &large);
  EXPECT_EQ(alone.expected_end, now + seconds(1) + milliseconds(5));
}

TEST(LaunchTimes, WhatTakesShorterIsExpectedToSoon) {
  LaunchTimes times;
  LaunchTimes::Clock::time_point now{seconds(1000)};
  const int shape = 0;
  for (int i = 0; i < 30; ++i) {
    const auto launch = times.begin(now, &shape);
    now += i < 10 ? milliseconds(10) : milliseconds(1);
    times.end(now, launch);
  }
  EXPECT_LT(times.begin(now, &shape).expected_end - now, microseconds(1100));
}

TEST(LaunchTimes, ThreadsDoNotOversleepForLong) {
  LaunchTimes times;
  LaunchTimes::Clock::time_point now{seconds(1000)};
  const int shape = 0;
  for (int i = 0; i < 30; ++i) {  // first beside others, then alone
    const auto launch = times.begin(now, &shape);
    const auto done = now + (i < 15 ? milliseconds(18) : milliseconds(6));
    const auto woke = launch.expected_end - milliseconds(1);
    now = std::max(done, woke) + microseconds(5);
    times.end(now, launch, woke);
  }
  EXPECT_LT(times.begin(now, &shape).expected_end - now, microseconds(7500));
}

TEST(WakeTime, IsBeforeTheEndByAsMuchAsThreadsAreLate) {
  WakeTime wake_time;
  const WakeTime::Clock::time_point now{seconds(1000)};
  EXPECT_EQ(wake_time.before(now, now - seconds(1)), std::nullopt);
  EXPECT_EQ(wake_time.before(now, now + microseconds(150)), std::nullopt) << "too short to sleep";
  const auto wake = wake_time.before(now, now + milliseconds(16));
  ASSERT_TRUE(wake);
  EXPECT_EQ(now + milliseconds(16) - *wake, wake_time.margin(milliseconds(16)));
  EXPECT_EQ(wake_time.margin(milliseconds(16)), microseconds(1050));
  wake_time.record(*wake, *wake + milliseconds(2));
  EXPECT_EQ(wake_time.margin(milliseconds(16)), milliseconds(5));
  for (int i = 0; i < 200; ++i) {
    wake_time.record(*wake, *wake);
  }
  EXPECT_EQ(wake_time.margin(milliseconds(16)), microseconds(1050));
  wake_time.record(*wake, *wake + seconds(1));
  int skipped = 0;
  for (; !wake_time.before(now, now + milliseconds(16)); ++skipped) {
    ASSERT_LT(skipped, 1000) << "it tries again some time";
  }
  EXPECT_GT(skipped, 100);
}

}  // namespace ortmulti::tests
