// A device that sleeps: requests wait for it and wake it.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/pool/runners.hpp"
#include "fake_runner.hpp"

namespace ortmulti::tests {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Outcome = Request::Outcome;

// NOLINTBEGIN(bugprone-throwing-static-initialization,cert-err58-cpp): an empty name takes no memory
const Device one = Device::cuda(0);
const Device other = Device::cuda(1);
// NOLINTEND(bugprone-throwing-static-initialization,cert-err58-cpp)

Pool::Clock::time_point in(milliseconds time) { return Pool::Clock::now() + time; }

class PoolSleep : public PoolWithFakes {
 protected:
  // What a device does, which fails while `fails` says so, and waits while `may_wake` is not set.
  std::shared_ptr<DeviceSleep> made(bool auto_wake = true) {
    auto sleep = std::make_shared<DeviceSleep>(SleepLevel::weights);
    sleep->auto_wake = auto_wake;
    sleep->sleep = [this](Pool::Clock::time_point) {
      ++slept;
      return true;
    };
    sleep->wake = [this] {
      may_wake.wait();
      ++woken;
      if (fails) {
        throw Error(ErrorKind::out_of_memory, "no memory to wake");
      }
    };
    return sleep;
  }
  bool sleep(const Device& device = one, bool auto_wake = true) {
    return pool->sleep(device, made(auto_wake), in(seconds(60)));
  }
  // Returns when the device gives its memory back, which takes until `end`.
  std::future<bool> fall_asleep_until(std::promise<void>& end) {
    const auto begun = std::make_shared<std::promise<void>>();
    const auto slow = made();
    slow->sleep = [begun, &end](Pool::Clock::time_point) {
      begun->set_value();
      end.get_future().wait();
      return true;
    };
    auto falling = std::async(std::launch::async, [this, slow] { return pool->sleep(one, slow, in(seconds(60))); });
    begun->get_future().wait();
    return falling;
  }
  bool is_awake_soon() { return pool->wait_until_awake(one, in(seconds(60))); }

  std::promise<void> wake_up;
  std::shared_future<void> may_wake = wake_up.get_future().share();
  std::atomic<int> slept{0};
  std::atomic<int> woken{0};
  std::atomic<bool> fails{false};
};

TEST_F(PoolSleep, ADeviceWithoutSessionsIsRefusedWhenItIsToGiveTheirMemoryBack) {
  add(one);  // its runner has no session
  const auto sleeper = make_sleeper(pool, one, SleepLevel::weights, HostCopy::none, nullptr);
  EXPECT_TRUE(throws(ErrorKind::closed, {"no session there"}, [&] { pool->sleep(one, sleeper, in(seconds(60))); }));
  submit(one);
  EXPECT_EQ(answers.wait_for(1).back()->outcome, Outcome::done) << "it has stayed awake";
  EXPECT_TRUE(throws(ErrorKind::not_implemented, {"sessions that stay cannot sleep"},
                     [&] { make_sleeper(pool, one, SleepLevel::session, HostCopy::none, nullptr); }));
}

TEST_F(PoolSleep, ARequestWakesTheDeviceAndIsAnswered) {
  const auto runner = add(one);
  ASSERT_TRUE(sleep());
  EXPECT_EQ(stats_of(one).level, SleepLevel::weights);
  EXPECT_TRUE(sleep()) << "it sleeps already";
  EXPECT_EQ(slept, 1);
  submit();
  submit(one);
  EXPECT_EQ(runner->runs().size(), 0);
  wake_up.set_value();
  for (const auto& request : answers.wait_for(2)) {
    EXPECT_EQ(request->outcome, Outcome::done);
  }
  EXPECT_EQ(woken, 1);
  EXPECT_EQ(stats_of(one).level, SleepLevel::awake);
  EXPECT_EQ(stats_of(one).sleeps, 1);
  EXPECT_EQ(stats_of(one).wakes, 1);
  EXPECT_EQ(stats_of(one).wake.count(), 1);
}

TEST_F(PoolSleep, ADeviceThatIsAwakeTakesWhatNamesNoDevice) {
  wake_up.set_value();
  add(one);
  const auto awake = add(other);
  ASSERT_TRUE(sleep());
  wait_behind(awake);
  EXPECT_EQ(stats_of(one).level, SleepLevel::weights);
  submit(one);
  answers.wait_for(2);  // the one that waited too, since a device came
  EXPECT_EQ(woken, 1);
}

TEST_F(PoolSleep, ItWaitsForRunsAndGivesUpAtItsTime) {
  wake_up.set_value();
  const auto runner = add(one);
  keep_busy(runner);
  add(one);  // idle
  const auto given_up = made();
  EXPECT_FALSE(pool->sleep(one, given_up, in(milliseconds(1))));
  EXPECT_EQ(stats_of(one).level, SleepLevel::awake) << "it may be taken back";
  submit();
  EXPECT_FALSE(pool->sleep(one, made(), in(milliseconds(1)))) << "another sleep waits for it";
  pool->stay_awake(one, made());  // not this one's
  EXPECT_EQ(pool->stats().waiting, 1) << "it falls asleep: nothing begins";
  pool->stay_awake(one, given_up);
  answers.wait_for(1);
  EXPECT_EQ(slept, 0);
  auto falling = std::async(std::launch::async, [&] { return sleep(); });
  runner->release();
  EXPECT_TRUE(falling.get());
  answers.wait_for(2);
  EXPECT_EQ(slept, 1);
}

TEST_F(PoolSleep, ADeadlineThatPassesInAWakeSaysSo) {
  add(one);
  ASSERT_TRUE(sleep());
  const auto late = answers.request();
  late->deadline =
      in(milliseconds(100));  // a machine with many processors takes more than 1 to start the wake's thread
  EXPECT_TRUE(pool->submit(late, std::nullopt));
  answers.wait_for(1);
  EXPECT_EQ(kind_of(*late), ErrorKind::deadline);
  EXPECT_NE(text_of(*late).find("cuda:0 was waking: call Pool.wake"), std::string::npos) << text_of(*late);
  wake_up.set_value();
  EXPECT_TRUE(is_awake_soon());
}

TEST_F(PoolSleep, ASleepDuringAWakeBeginsAfterIt) {
  const auto runner = add(one);
  ASSERT_TRUE(sleep());
  submit();
  auto again = std::async(std::launch::async, [&] { return sleep(); });
  EXPECT_FALSE(pool->sleep(one, made(), in(milliseconds(1)))) << "it wakes";
  wake_up.set_value();
  EXPECT_TRUE(again.get());
  EXPECT_EQ(answers.wait_for(1).front()->outcome, Outcome::done);
  EXPECT_EQ(stats_of(one).sleeps, 2);
}

TEST_F(PoolSleep, WithoutAutoWakeRequestsAreRefusedUntilWake) {
  wake_up.set_value();
  add(one);
  ASSERT_TRUE(sleep(one, false));
  EXPECT_TRUE(throws(ErrorKind::device, {"cuda:0: it is asleep", "Pool.wake"}, [&] { submit(); }));
  EXPECT_TRUE(throws(ErrorKind::device, {"asleep"}, [&] { submit(one); }));
  pool->wake(one);
  EXPECT_TRUE(is_awake_soon());
  submit();
  EXPECT_EQ(answers.wait_for(1).front()->outcome, Outcome::done);
}

TEST_F(PoolSleep, ARequestForAnyDeviceWakesThoseThatMayWakeByThemselves) {
  wake_up.set_value();
  add(one);
  add(other);
  ASSERT_TRUE(sleep(one, false));
  ASSERT_TRUE(sleep(other));
  submit();
  answers.wait_for(1);
  EXPECT_EQ(stats_of(one).level, SleepLevel::weights);
  EXPECT_EQ(stats_of(other).level, SleepLevel::awake);
}

TEST_F(PoolSleep, AFailedWakeFailsWhatWaitsAndTheNextRequestTriesAgain) {
  wake_up.set_value();
  add(one);
  ASSERT_TRUE(sleep());
  fails = true;
  submit();
  submit(one);
  for (const auto& request : answers.wait_for(2)) {
    EXPECT_EQ(kind_of(*request), ErrorKind::out_of_memory);
  }
  pool->wake(one);
  EXPECT_TRUE(throws(ErrorKind::out_of_memory, {"no memory to wake"}, [&] { is_awake_soon(); }));
  fails = false;
  submit();
  EXPECT_EQ(answers.wait_for(3).back()->outcome, Outcome::done);
}

TEST_F(PoolSleep, AFailedSleepLeavesItAwake) {
  wake_up.set_value();
  add(one);
  const auto sleep = made();
  sleep->sleep = [](Pool::Clock::time_point) -> bool { throw Error(ErrorKind::device, "the driver refuses"); };
  EXPECT_TRUE(throws(ErrorKind::device, {"the driver refuses"},
                     [&] { static_cast<void>(pool->sleep(one, sleep, in(seconds(60)))); }));
  submit();
  EXPECT_EQ(answers.wait_for(1).front()->outcome, Outcome::done);
  EXPECT_EQ(woken, 0);
}

TEST_F(PoolSleep, ItClosesAndIsRemovedWhileItSleepsOrWakes) {
  add(one);
  add(other);
  const auto watched = made();
  const std::weak_ptr<DeviceSleep> freed = watched;
  ASSERT_TRUE(pool->sleep(one, watched, in(seconds(60))));
  submit(one);
  ASSERT_TRUE(sleep(other));
  auto removing = std::async(std::launch::async, [&] { return pool->remove(one, in(seconds(60))); });
  wake_up.set_value();
  EXPECT_TRUE(removing.get());
  answers.wait_for(1);  // answered or failed
  const auto request = submit();
  EXPECT_TRUE(pool->close(false));
  EXPECT_EQ(request->outcome, Outcome::done);
  EXPECT_EQ(freed.use_count(), 1) << "the pool keeps what a removed device slept with";
}

TEST_F(PoolSleep, ClosingAndRemovingWaitForMemoryThatIsBeingGivenBack) {
  wake_up.set_value();
  add(one);
  add(other);
  std::promise<void> end;
  auto falling = fall_asleep_until(end);
  EXPECT_FALSE(pool->remove(one, in(milliseconds(1))));
  EXPECT_FALSE(pool->close(false, milliseconds(1)));
  EXPECT_EQ(stats_of(one).level, SleepLevel::weights);
  end.set_value();
  EXPECT_TRUE(falling.get());
  EXPECT_TRUE(pool->close(false));
  EXPECT_EQ(stats_of(one).level, SleepLevel::awake);
}

TEST_F(PoolSleep, ClosingAndRemovingEndASleepThatWaitsForRuns) {
  wake_up.set_value();
  const std::vector<std::shared_ptr<FakeRunner>> runners{add(one), add(other)};
  for (const auto& runner : runners) {
    keep_busy(runner);
  }
  auto falling = std::async(std::launch::async, [&] { return sleep(); });
  auto removed = std::async(std::launch::async, [&] { return sleep(other); });
  while (pool->activity(one).waiting + pool->activity(other).waiting < 2) {  // until both take nothing any more
    submit(one);
    submit(other);
    std::this_thread::yield();
  }
  EXPECT_FALSE(pool->remove(other, in(milliseconds(1))));
  EXPECT_TRUE(throws(ErrorKind::device, {"removed"}, [&] { removed.get(); }));
  EXPECT_FALSE(pool->close(false, milliseconds(1)));
  EXPECT_TRUE(throws(ErrorKind::closed, {"the pool is closed"}, [&] { falling.get(); }));
  EXPECT_EQ(slept, 0);
  for (const auto& runner : runners) {
    runner->release();
  }
  EXPECT_TRUE(pool->close(false));
}

class WithoutADeviceThatIsAwake : public PoolSleep, public testing::WithParamInterface<const char*> {};

TEST_P(WithoutADeviceThatIsAwake, WhatWaitsWakesAnother) {
  const std::string why = GetParam();
  wake_up.set_value();
  add(one);
  ASSERT_TRUE(sleep(one));
  std::shared_ptr<Request> waiting;
  if (why == "expected") {
    pool->expect(other, 1);
    waiting = submit();
    pool->not_coming(other, 1, std::make_exception_ptr(Error(ErrorKind::fail, "no such file")));
  } else {
    const auto runner = add(other);
    if (why == "broken") {
      break_down(*runner);
    }
    waiting = wait_behind(runner);
    why == "broken" ? runner->release() : static_cast<void>(pool->remove(other, Pool::Clock::now()));
  }
  std::vector<std::shared_ptr<Request>> answered;
  while (std::count(answered.begin(), answered.end(), waiting) == 0) {
    answered = answers.wait_for(answered.size() + 1);
  }
  EXPECT_EQ(waiting->outcome, Outcome::done);
  EXPECT_EQ(waiting->ran_on, one);
}

INSTANTIATE_TEST_SUITE_P(Which, WithoutADeviceThatIsAwake, testing::Values("removed", "broken", "expected"),
                         [](const auto& of) { return std::string(of.param); });

TEST_F(PoolSleep, ClosingMayBeGivenUpDuringAWakeThatNobodyWaitsFor) {
  add(one);
  ASSERT_TRUE(sleep());
  pool->wake(one);
  EXPECT_FALSE(pool->close(false, milliseconds(1)));
  wake_up.set_value();
  EXPECT_TRUE(pool->close(false));
}

TEST_F(PoolSleep, WhoWaitsForAWakeHasItAwakeThoughASleepCameBetween) {
  add(one);
  ASSERT_TRUE(sleep());
  wake_up.set_value();
  pool->wake(one);
  ASSERT_TRUE(is_awake_soon());
  std::promise<void> end;
  auto falling = fall_asleep_until(end);
  pool->wake(one);
  end.set_value();
  EXPECT_TRUE(is_awake_soon());
  EXPECT_TRUE(falling.get());
  EXPECT_EQ(woken, 2);
}

TEST_F(PoolSleep, TheLastReferenceToAPoolMayGoInOneOfItsWorkers) {
  std::promise<void> freed;
  {
    const std::shared_ptr<FakeRunner> runner(new FakeRunner(one), [&](const FakeRunner* gone) {
      delete gone;  // NOLINT(cppcoreguidelines-owning-memory)
      freed.set_value();
    });
    std::promise<std::shared_ptr<Pool>> last;
    std::promise<void> dropped;
    const auto request = std::make_shared<Request>();
    request->receiver = std::make_shared<Calls>([&](const auto&) {
      last.get_future().get().reset();
      dropped.set_value();
    });
    auto owned = Pool::make({});
    owned->add({runner});
    ASSERT_TRUE(owned->submit(request, std::nullopt));
    last.set_value(std::move(owned));
    dropped.get_future().wait();
  }
  freed.get_future().wait();
}

// Sleeps that free the runners: `made_again` are those that the wake adds.
class PoolSleepWithoutSessions : public PoolSleep {
 protected:
  std::shared_ptr<DeviceSleep> made() {
    auto sleep = PoolSleep::made();
    sleep->level = SleepLevel::session;
    sleep->wake = [this, wake = sleep->wake] {
      for (int i = 0; i < sessions; ++i) {
        made_again.push_back(add(one));
      }
      wake();
    };
    return sleep;
  }
  bool sleep() { return pool->sleep(one, made(), in(seconds(60))); }

  int sessions = 1;
  std::vector<std::shared_ptr<FakeRunner>> made_again;
};

TEST_F(PoolSleepWithoutSessions, RunnersAreFreedAndOthersTakeTheirPlaces) {
  wake_up.set_value();
  sessions = 2;
  add(one);
  const std::weak_ptr<FakeRunner> before = add(one);
  const auto sleeper = made();
  sleeper->sleep = [&](Pool::Clock::time_point) {
    EXPECT_TRUE(before.expired()) << "it has nothing to give back while a runner holds its session";
    return true;
  };
  ASSERT_TRUE(pool->sleep(one, sleeper, in(seconds(60))));
  EXPECT_EQ(stats_of(one).level, SleepLevel::session);
  submit();
  submit(one);
  answers.wait_for(2);
  EXPECT_EQ(stats_of(one).sessions, 2);
  EXPECT_EQ(stats_of(one).in_flight, 2) << "threads were added instead of runners";
  EXPECT_EQ(made_again[0]->runs().size() + made_again[1]->runs().size(), 2);
  ASSERT_TRUE(sleep());
  submit();
  answers.wait_for(3);
}

TEST_F(PoolSleepWithoutSessions, AFailedWakeFreesTheRunnersThatHadCome) {
  wake_up.set_value();
  add(one);
  ASSERT_TRUE(sleep());
  fails = true;
  submit();
  EXPECT_EQ(kind_of(*answers.wait_for(1).front()), ErrorKind::out_of_memory);
  ASSERT_EQ(made_again.size(), 1);
  EXPECT_EQ(made_again.front().use_count(), 1);
  fails = false;
  submit();
  EXPECT_EQ(answers.wait_for(2).back()->outcome, Outcome::done);
  sessions = 2;
  ASSERT_TRUE(sleep());
  submit();
  EXPECT_EQ(kind_of(*answers.wait_for(3).back()), ErrorKind::fail) << "it has more sessions than before";
}

TEST_F(PoolSleepWithoutSessions, ADeviceWithoutItsWeightsGivesItsSessionsBackToo) {
  wake_up.set_value();
  const std::weak_ptr<FakeRunner> before = add(one);
  ASSERT_TRUE(PoolSleep::sleep());
  ASSERT_TRUE(sleep());
  EXPECT_TRUE(before.expired());
  EXPECT_EQ(stats_of(one).level, SleepLevel::session);
  ASSERT_TRUE(PoolSleep::sleep()) << "it sleeps already";
  EXPECT_EQ(stats_of(one).level, SleepLevel::session);
  EXPECT_EQ(slept, 2);
  submit();
  EXPECT_EQ(answers.wait_for(1).back()->outcome, Outcome::done);
  EXPECT_EQ(woken, 1);
}

TEST_F(PoolSleepWithoutSessions, ASleepThatFailsAfterTheRunnersWereFreedIsASleep) {
  wake_up.set_value();
  const std::weak_ptr<FakeRunner> before = add(one);
  const auto failing = made();
  failing->sleep = [](Pool::Clock::time_point) -> bool { throw Error(ErrorKind::fail, "not now"); };
  EXPECT_TRUE(
      throws(ErrorKind::fail, {"not now"}, [&] { static_cast<void>(pool->sleep(one, failing, in(seconds(60)))); }));
  EXPECT_TRUE(before.expired());
  EXPECT_EQ(stats_of(one).level, SleepLevel::session);
  submit();
  EXPECT_EQ(answers.wait_for(1).back()->outcome, Outcome::done);
}

TEST_F(PoolSleepWithoutSessions, WhatWaitsForTheWakeIsAnsweredBeforeThePoolCloses) {
  add(one);
  ASSERT_TRUE(sleep());
  const auto request = submit();
  auto closing = std::async(std::launch::async, [&] { return pool->close(false); });
  while (!pool->closed()) {
    std::this_thread::yield();
  }
  wake_up.set_value();
  EXPECT_TRUE(closing.get());
  EXPECT_EQ(request->outcome, Outcome::done);
  EXPECT_TRUE(throws(ErrorKind::closed, {"closed before cuda:0 woke"}, [&] { is_awake_soon(); }));
}

TEST_F(PoolSleep, WhatIsNoDeviceOfThePoolCannotSleep) {
  wake_up.set_value();
  pool->expect(one, 1);
  EXPECT_TRUE(throws(ErrorKind::device, {"cuda:0 cannot sleep", "wait_ready"}, [&] { sleep(); }));
  EXPECT_TRUE(throws(ErrorKind::invalid_argument, {"no session on cuda:1"}, [&] { sleep(other); }));
  const auto runner = add(one);
  break_down(*runner, "it fell off the bus");
  submit();
  answers.wait_for(1);
  EXPECT_TRUE(throws(ErrorKind::device, {"it fell off the bus"}, [&] { sleep(); }));
}

}  // namespace
}  // namespace ortmulti::tests
