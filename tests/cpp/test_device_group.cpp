// The sessions of one device in a pool, without a pool.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "core/pool/device_group.hpp"
#include "fake_runner.hpp"

namespace ortmulti::tests {
namespace {

using Does = Worker::Does;
using Rest = DeviceGroup::Rest;
using std::chrono::milliseconds;
using std::chrono::seconds;

class DeviceGroups : public testing::Test {
 protected:
  DeviceGroup& make(int index) { return *all.emplace_back(std::make_unique<DeviceGroup>(Device::cuda(index), all)); }
  Worker& add(DeviceGroup& group, const void* session = nullptr) {
    Worker& worker = *workers.emplace_back(std::make_unique<Worker>());
    worker.runner = std::make_shared<FakeRunner>(group.device, session);
    worker.session = worker.runner->session();
    worker.group = &group;
    group.add(worker, at_first);
    return worker;
  }
  // A run of the worker that fails; and another device's success, which tells that the device is to blame.
  void fail(Worker& worker) {
    RunEnd end;
    end.error = make_error(ErrorKind::fail, "a bad kernel");
    const auto suspicion = worker.group->suspect(worker, end);
    ASSERT_TRUE(suspicion);
    worker.group->decide(*suspicion, now);
  }
  static std::shared_ptr<DeviceSleep> sleep(SleepLevel level = SleepLevel::weights) {
    auto made = std::make_shared<DeviceSleep>();
    made->level = level;
    return made;
  }

  DeviceGroup::All all;
  std::vector<std::unique_ptr<Worker>> workers;
  std::optional<std::size_t> at_first;
  DeviceGroup::Clock::time_point now{seconds(1)};
  Request request;
};

TEST_F(DeviceGroups, TakesRequestsWhileSessionsAreThereOrOnTheirWay) {
  DeviceGroup& group = make(0);
  EXPECT_FALSE(group.known());
  EXPECT_FALSE(group.usable());
  group.expect(2);
  EXPECT_TRUE(group.known());
  EXPECT_TRUE(group.usable());
  EXPECT_EQ(group.stats().state, DeviceState::starting);
  EXPECT_FALSE(group.not_coming(1, "no memory")) << "another one is on its way";
  add(group);
  EXPECT_FALSE(group.is_expected());
  EXPECT_FALSE(group.not_coming(1, "no memory")) << "one is there";
  EXPECT_EQ(group.stats().state, DeviceState::ready);
  group.break_down("fell off the bus");
  EXPECT_FALSE(group.usable());
  EXPECT_EQ(group.stats().state, DeviceState::broken);
  group.remove();
  EXPECT_EQ(group.stats().state, DeviceState::removed);
}

TEST_F(DeviceGroups, FailsWithItsLastSession) {
  DeviceGroup& group = make(0);
  group.expect(2);
  EXPECT_FALSE(group.not_coming(1, "first"));
  EXPECT_TRUE(group.not_coming(1, "last"));
  EXPECT_FALSE(group.not_coming(1, "later"));
  EXPECT_EQ(group.stats().state, DeviceState::failed);
  EXPECT_EQ(group.broken(), "last");
  group.expect(1);  // it is wanted again
  EXPECT_TRUE(group.usable());
  group.none_is_coming("the pool was closed");
  EXPECT_EQ(group.broken(), "the pool was closed");
}

TEST_F(DeviceGroups, GivesTheSessionWithTheFewestRuns) {
  DeviceGroup& group = make(0);
  const int one = 0;
  const int other = 0;
  Worker& first = add(group, &one);
  Worker& second = add(group, &one);
  Worker& third = add(group, &other);
  EXPECT_EQ(group.stats().sessions, 2U);
  EXPECT_EQ(group.idle_worker(), &first);
  group.occupy(first, Does::forming);
  group.occupy(first, Does::runs);
  EXPECT_EQ(group.busy(), 1U);
  EXPECT_EQ(group.idle_worker(), &third);
  third.away = true;
  EXPECT_EQ(group.idle_worker(), &second);
  group.occupy(second, Does::given);
  EXPECT_EQ(group.idle_worker(), nullptr);
  group.release(first);
  group.release(first);
  EXPECT_EQ(group.busy(), 1U);
  EXPECT_TRUE(group.active());
  group.release(second);
  EXPECT_FALSE(group.active());
}

TEST_F(DeviceGroups, HasAsManyRequestsUnderWayAsAreChosen) {
  DeviceGroup& group = make(0);
  const int session = 0;
  at_first = 2;
  Worker& worker = add(group, &session);
  Worker& second = add(group, &session);
  add(group, &session);
  EXPECT_EQ(group.stats().in_flight, 2U);
  group.occupy(worker, Does::runs);
  EXPECT_FALSE(group.occupied());
  group.occupy(second, Does::runs);
  EXPECT_TRUE(group.occupied());
  EXPECT_FALSE(group.occupied(1));
}

TEST_F(DeviceGroups, IsSuspendedAfterFiveFailuresThatOthersDoNotShare) {
  DeviceGroup& bad = make(0);
  DeviceGroup& good = make(1);
  Worker& worker = add(bad);
  add(good);
  for (int i = 0; i < 4; ++i) {
    fail(worker);
  }
  bad.note_success(worker);  // ends the row
  for (int i = 0; i < 4; ++i) {
    fail(worker);
    EXPECT_TRUE(bad.takes(request));
  }
  fail(worker);
  EXPECT_TRUE(bad.suspended());
  EXPECT_FALSE(bad.dispatches());
  EXPECT_FALSE(bad.takes(request));
  EXPECT_NE(bad.stats().suspended.find("a bad kernel"), std::string::npos);
  request.device = bad.device;
  EXPECT_TRUE(bad.takes(request)) << "who names the device gets it";
}

TEST_F(DeviceGroups, ASuspendedDeviceIsProbedAndOneSuccessEndsIt) {
  DeviceGroup& bad = make(0);
  Worker& worker = add(bad);
  add(make(1));
  for (int i = 0; i < 5; ++i) {
    fail(worker);
  }
  EXPECT_FALSE(bad.probe_due(request, now + milliseconds(99)));
  now += milliseconds(100);
  EXPECT_TRUE(bad.probe_due(request, now));
  bad.occupy(worker, Does::runs);
  EXPECT_TRUE(worker.probing);
  EXPECT_FALSE(bad.probe_due(request, now)) << "one at a time";
  fail(worker);
  bad.release(worker);
  EXPECT_FALSE(bad.probe_due(request, now + milliseconds(199))) << "the pause is twice as long";
  EXPECT_TRUE(bad.probe_due(request, now + milliseconds(200)));
  bad.occupy(worker, Does::runs);
  EXPECT_TRUE(bad.note_success(worker));
  EXPECT_FALSE(bad.suspended());
}

TEST_F(DeviceGroups, WithoutAnotherDeviceNobodyCanTellWhatIsToBlame) {
  DeviceGroup& group = make(0);
  Worker& worker = add(group);
  RunEnd end;
  end.error = make_error(ErrorKind::fail, "a bad kernel");
  EXPECT_FALSE(group.suspect(worker, end));
  DeviceGroup& other = make(1);
  add(other);
  EXPECT_TRUE(group.suspect(worker, end));
  end.why_broken = "it is broken for good";
  EXPECT_FALSE(group.suspect(worker, end));
  end = {};
  end.error = make_error(ErrorKind::invalid_argument, "a bad request");
  EXPECT_FALSE(group.suspect(worker, end));
}

TEST_F(DeviceGroups, FallsAsleepAndWakes) {
  DeviceGroup& group = make(0);
  Worker& worker = add(group);
  const auto sleeper = sleep();
  const auto asked = sleep();
  group.fall_asleep(asked, sleeper);
  EXPECT_TRUE(group.falls_with(asked));
  EXPECT_FALSE(group.falls_with(sleeper));
  EXPECT_TRUE(group.occupied());
  EXPECT_EQ(group.stats().level, SleepLevel::awake) << "it may be taken back";
  EXPECT_EQ(group.stay_awake(), sleeper);
  EXPECT_EQ(group.rest(), Rest::awake);
  EXPECT_EQ(group.stay_awake(), nullptr);

  group.fall_asleep(sleeper, sleeper);
  group.give_back();
  EXPECT_TRUE(group.active());
  EXPECT_EQ(group.stay_awake(), nullptr) << "what is given back is not taken back";
  EXPECT_EQ(group.stats().level, SleepLevel::weights);
  group.fell_asleep(false);
  EXPECT_EQ(group.give_more_back(sleep(SleepLevel::session)), sleeper);
  group.fell_asleep(true);
  EXPECT_EQ(group.stats().level, SleepLevel::session);
  EXPECT_EQ(group.stats().sleeps, 1U);

  EXPECT_EQ(group.begin_wake(), &worker);
  EXPECT_EQ(worker.does, Does::wakes_device);
  EXPECT_EQ(group.idle_worker(), nullptr);
  group.ask_awake(true);
  group.did_not_wake(make_error(ErrorKind::out_of_memory, "no memory"));
  EXPECT_TRUE(group.asleep());
  EXPECT_TRUE(group.wake_error());
  EXPECT_FALSE(group.asked_awake());
  group.begin_wake();
  EXPECT_FALSE(group.wake_error());
  EXPECT_TRUE(group.woke());
  EXPECT_EQ(group.stats().wakes, 1U);
  EXPECT_EQ(group.stats().wake.count(), 1U);
  EXPECT_EQ(group.rest(), Rest::awake);
}

TEST_F(DeviceGroups, RunnersThatWereFreedGetSuccessorsInTheirPlaces) {
  DeviceGroup& group = make(0);
  Worker& worker = add(group);
  EXPECT_EQ(group.take_runners().size(), 1U);
  EXPECT_FALSE(worker.runner);
  const auto runner = std::make_shared<FakeRunner>(group.device);
  EXPECT_TRUE(throws(ErrorKind::fail, {"more sessions"}, [&] { group.give_back_runners({runner, runner}); }));
  group.give_back_runners({runner});
  EXPECT_EQ(worker.runner, runner);
  EXPECT_EQ(worker.session, runner->session());
}

TEST_F(DeviceGroups, EveryCountIsAddedUp) {
  const auto set = [](DeviceStats& stats, std::int64_t value) {
    DeviceStats::for_each_count([&](const std::string& /*name*/, auto count) {
      if constexpr (std::is_same_v<decltype(count), std::uint64_t DeviceStats::*>) {
        stats.*count = static_cast<std::uint64_t>(value);
      } else {
        for (std::int64_t i = 0; i < value; ++i) {
          (stats.*count).record(1);
        }
      }
    });
  };
  DeviceStats stats;
  DeviceStats more;
  set(stats, 2);
  set(more, 3);
  stats.add(more);
  std::set<std::string> names;
  DeviceStats::for_each_count([&](const std::string& name, auto count) {
    names.insert(name);
    if constexpr (std::is_same_v<decltype(count), std::uint64_t DeviceStats::*>) {
      EXPECT_EQ(stats.*count, 5U) << name;
    } else {
      EXPECT_EQ((stats.*count).count(), 5U) << name;
    }
  });
  EXPECT_EQ(names.size(), 13U);
}

}  // namespace
}  // namespace ortmulti::tests
