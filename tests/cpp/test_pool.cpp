#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "fake_runner.hpp"

namespace ortmulti::tests {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using Outcome = Request::Outcome;

class PoolTest : public PoolWithFakes {};

TEST_F(PoolTest, AnswersWhatWasAskedFor) {
  const auto runner = add(Device::cpu());
  const auto request = submit();
  EXPECT_EQ(answers.wait_for(1).front(), request);
  EXPECT_EQ(request->outcome, Outcome::done);
  EXPECT_EQ(request->outputs.size(), 1U);
  EXPECT_LE(request->submitted, request->started);
  EXPECT_LE(request->started, request->ended);
  EXPECT_EQ(pool->stats().devices.front().done, 1U);
}

TEST_F(PoolTest, TakesTheIdleSessionOfTheLeastBusyDevice) {
  const auto first = add(Device::cuda(0));
  const auto second = add(Device::cuda(1));
  const auto third = add(Device::cuda(1));
  for (const auto& runner : {first, second, third}) {
    runner->hold();
  }
  for (int i = 0; i < 3; ++i) {
    submit();
  }
  for (const auto& runner : {first, second, third}) {
    runner->wait_for_runs(1);
  }
}

TEST_F(PoolTest, KeepsTheOrderOfWhatWaits) {
  const auto runner = add(Device::cpu());
  keep_busy(runner);
  std::vector<std::shared_ptr<Request>> waiting;
  waiting.reserve(10);
  for (int i = 0; i < 10; ++i) {
    waiting.push_back(i % 2 == 0 ? submit() : submit(Device::cpu()));
  }
  EXPECT_EQ(pool->stats().waiting, 5U);
  EXPECT_EQ(pool->stats().devices.front().waiting, 5U);
  runner->release();
  const auto finished = answers.wait_for(11);
  EXPECT_EQ(std::vector<std::shared_ptr<Request>>(finished.begin() + 1, finished.end()), waiting);
}

TEST_F(PoolTest, RunsOnTheDeviceAskedFor) {
  const auto first = add(Device::cuda(0));
  const auto second = add(Device::cuda(1));
  for (int i = 0; i < 20; ++i) {
    submit(Device::cuda(1));
  }
  answers.wait_for(20);
  EXPECT_TRUE(first->runs().empty());
  EXPECT_EQ(second->runs().size(), 20U);
  EXPECT_TRUE(throws(ErrorKind::invalid_argument, {"no session on cuda:2"}, [&] { submit(Device::cuda(2)); }));
}

TEST_F(PoolTest, RunsInTheCallersThreadWhenASessionIsIdle) {
  const auto runner = add(Device::cpu());
  std::thread::id ran_in;
  runner->action = [&](Request&) { ran_in = std::this_thread::get_id(); };
  Request request;
  EXPECT_TRUE(pool->run_here(request));
  EXPECT_EQ(ran_in, std::this_thread::get_id());
  EXPECT_EQ(request.outcome, Outcome::done);

  keep_busy(runner);
  Request refused;
  EXPECT_FALSE(pool->run_here(refused));
  EXPECT_EQ(refused.outcome, Outcome::pending);
  runner->release();
  answers.wait_for(1);
}

TEST_F(PoolTest, AThreadThatSeesSignalsRunsNothingThatMayTakeLong) {
  const auto runner = add(Device::cuda(0));
  add(Device::cuda(1));
  runner->action = [](Request&) { std::this_thread::sleep_for(milliseconds(25)); };
  Request request;
  EXPECT_FALSE(pool->run_here(request, true)) << "nobody knows how long";
  EXPECT_TRUE(pool->run_here(request));
  EXPECT_EQ(runner->runs().size(), 1U) << "its turn was not lost";
  pool->remove(Device::cuda(1), Pool::Clock::now() + std::chrono::seconds(60));
  Request later;
  EXPECT_FALSE(pool->run_here(later, true)) << "runs take long";
}

TEST_F(PoolTest, AGpuRunsInTheThreadOfOneCallerAlone) {
  for (const Device& device : {Device::cuda(0), Device::cpu()}) {
    add(device);
    Request first;
    Request second;
    Request third;
    first.device = second.device = third.device = device;
    EXPECT_TRUE(pool->run_here(first));
    const auto by_another = std::async(std::launch::async, [&] { return pool->run_here(second); }).get();
    EXPECT_EQ(by_another, device == Device::cpu());
    EXPECT_EQ(second.outcome, by_another ? Outcome::done : Outcome::pending);
    EXPECT_TRUE(pool->run_here(third));
  }
}

TEST_F(PoolTest, WhatWaitsGoesOnAfterARunInTheCallersThread) {
  const auto runner = add(Device::cpu());
  runner->hold();
  Request here;
  auto caller = std::async(std::launch::async, [&] { return pool->run_here(here); });
  runner->wait_for_runs(1);
  const auto waiting = submit();
  EXPECT_EQ(pool->stats().waiting, 1U);
  runner->release();
  EXPECT_TRUE(caller.get());
  answers.wait_for(1);
  EXPECT_EQ(waiting->outcome, Outcome::done);
}

TEST_F(PoolTest, TheWaitForRoomIsPartOfTheLatency) {
  pool = Pool::make({0, {}});
  const auto runner = add(Device::cpu());
  keep_busy(runner);
  const auto request = answers.request();
  EXPECT_FALSE(pool->submit(request, Pool::Clock::now() + milliseconds(20)));
  const auto asked = request->submitted;
  EXPECT_FALSE(pool->submit(request, Pool::Clock::now()));
  runner->release();
  EXPECT_TRUE(pool->submit(request, Pool::Clock::now() + hours(1)));
  answers.wait_for(2);
  EXPECT_EQ(request->submitted, asked);
  EXPECT_GE(pool->stats().devices.front().queue.max_ns(), 20'000'000);
}

TEST_F(PoolTest, AQueueOfNoneTakesWhatCanBeginAtOnce) {
  pool = Pool::make({0, {}});
  const auto runner = add(Device::cpu());
  runner->hold();
  EXPECT_TRUE(pool->submit(answers.request(), Pool::Clock::now()));
  EXPECT_FALSE(pool->submit(answers.request(), Pool::Clock::now()));
}

TEST_F(PoolTest, ABrokenDeviceIsTakenOut) {
  const auto bad = add(Device::cuda(0));
  const auto also_bad = add(Device::cuda(0));
  const auto good = add(Device::cuda(1));
  for (const auto& runner : {bad, also_bad, good}) {
    runner->hold();
  }
  break_down(*bad, "its context is gone");
  break_down(*also_bad, "its context is gone");
  const std::vector<std::shared_ptr<Request>> running{submit(), submit(), submit()};
  for (const auto& runner : {bad, also_bad, good}) {
    runner->wait_for_runs(1);
  }
  const auto for_the_bad = submit(Device::cuda(0));
  const auto for_any = submit();
  bad->release();
  // The one whose run broke it fails, and so does what waited for that device alone.
  for (const auto& request : answers.wait_for(2)) {
    EXPECT_EQ(request->outcome, Outcome::failed);
    EXPECT_TRUE(request == for_the_bad || text_of(*request) == "lost");
  }
  EXPECT_EQ(kind_of(*for_the_bad), ErrorKind::device);
  also_bad->release();  // whose request is not to blame, and runs elsewhere
  good->release();
  answers.wait_for(5);
  EXPECT_EQ(for_any->outcome, Outcome::done);
  const PoolStats stats = pool->stats();
  EXPECT_EQ(stats.devices[0].state, DeviceState::broken);
  EXPECT_EQ(stats.devices[0].broken, "its context is gone");
  EXPECT_EQ(stats.devices[0].retried, 1U);
  EXPECT_EQ(stats.devices[0].failed, 1U);
  EXPECT_EQ(stats.devices[1].done, 3U);
  EXPECT_EQ(good->runs().size(), 3U);
  EXPECT_TRUE(throws(ErrorKind::device, {"no session left", "its context is gone"}, [&] { submit(Device::cuda(0)); }));
  EXPECT_EQ(submit()->device, std::nullopt);
  answers.wait_for(6);
}

TEST_F(PoolTest, OnlyDevicesThatTakeRequestsAreWarmedUp) {
  const auto broken = add(Device::cuda(0));
  const auto good = add(Device::cuda(1));
  break_down(*broken);
  submit(Device::cuda(0));
  answers.wait_for(1);
  EXPECT_EQ(pool->runners(), std::vector<std::shared_ptr<Runner>>{good});
}

TEST_F(PoolTest, WhenTheLastDeviceBreaksWhatWaitsFails) {
  const auto runner = add(Device::cuda(0));
  break_down(*runner);
  const auto waiting = wait_behind(runner);
  runner->release();
  answers.wait_for(2);
  EXPECT_EQ(waiting->outcome, Outcome::failed);
  EXPECT_EQ(kind_of(*waiting), ErrorKind::device);
  EXPECT_TRUE(throws(ErrorKind::device, {"gone"}, [&] { submit(); }));
  Request here;
  EXPECT_TRUE(throws(ErrorKind::device, {"gone"}, [&] { pool->run_here(here); }));
}

TEST_F(PoolTest, ASessionThatComesLaterTakesWhatWaits) {
  EXPECT_TRUE(throws(ErrorKind::device, {"no session left"}, [&] { submit(); }));
  const auto first = add(Device::cpu());
  first->hold();
  submit();
  const auto waiting = submit();
  add(Device::cuda(0));
  EXPECT_EQ(answers.wait_for(1).front(), waiting);
}

}  // namespace
}  // namespace ortmulti::tests
