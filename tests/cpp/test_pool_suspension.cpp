// A device whose runs fail, while the same requests succeed on other devices, gets no requests but for probes.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fake_runner.hpp"

namespace ortmulti::tests {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Outcome = Request::Outcome;

// NOLINTBEGIN(bugprone-throwing-static-initialization,cert-err58-cpp): an empty name takes no memory
const Device bad = Device::cuda(0);
const Device good = Device::cuda(1);
// NOLINTEND(bugprone-throwing-static-initialization,cert-err58-cpp)

[[noreturn]] void fail_run() { throw Error(ErrorKind::ep_fail, "CUBLAS failure 13"); }

class PoolSuspension : public PoolWithFakes {
 protected:
  PoolSuspension() { make({}); }

  // A pool whose clock stands still until advance().
  void make(const Batching& batching) {
    Pool::Options options;
    options.batching = batching;
    options.now = [this] { return Pool::Clock::time_point(milliseconds(now_ms.load())); };
    pool = Pool::make(options);
  }
  void advance(milliseconds time) { now_ms += time.count(); }

  // One whose runs fail while `works` is false.
  std::shared_ptr<FakeRunner> add_unsteady(const Device& device = bad) {
    auto runner = add(device);
    runner->action = [this](Request&) {
      if (!works.load()) {
        fail_run();
      }
    };
    return runner;
  }

  // The other device, which runs one request until it is released.
  std::shared_ptr<FakeRunner> add_busy() {
    auto runner = add(good);
    keep_busy(runner);
    return runner;
  }

  void wait_for_retries(std::uint64_t retries) {
    while (stats_of(bad).retried < retries) {
      std::this_thread::yield();
    }
  }

  Outcome ask(const std::optional<Device>& device = {}) {
    const auto request = submit(device);
    answers.wait_for(++asked);
    wait_until_idle();
    return request->outcome;
  }

  // A session is free a little later than its answer comes.
  void wait_until_idle() {
    const auto busy = [](const DeviceStats& device) { return device.busy != 0; };
    for (;;) {
      const PoolStats stats = pool->stats();
      if (std::ranges::none_of(stats.devices, busy)) {
        return;
      }
      std::this_thread::yield();
    }
  }

  bool suspended(const Device& device) { return !stats_of(device).suspended.empty(); }

  void suspend_bad() {
    works = false;
    for (int i = 0; i < 100 && !suspended(bad); ++i) {
      EXPECT_EQ(ask(), Outcome::done);
    }
    ASSERT_TRUE(suspended(bad));
  }

  std::atomic<bool> works{true};
  std::atomic<std::int64_t> now_ms{0};
  std::size_t asked = 0;
};

TEST_F(PoolSuspension, ADeviceThatFailsFastCostsNobodyItsAnswer) {
  constexpr std::size_t each = 60;
  add_unsteady();
  add(good);
  std::atomic<std::size_t> failed{0};
  const auto ask_all = [&] {
    in_threads(64, [&](int) {
      for (std::size_t i = 0; i < each; ++i) {
        std::promise<void> answered;
        const auto request = std::make_shared<Request>();
        request->receiver = std::make_shared<Calls>([&](const auto&) { answered.set_value(); });
        pool->submit(request, std::nullopt);
        answered.get_future().wait();
        failed += request->outcome == Outcome::done ? 0 : 1;
      }
    });
  };
  ask_all();
  works = false;
  ask_all();
  EXPECT_EQ(failed.load(), 0U);
  EXPECT_TRUE(suspended(bad));
  EXPECT_LE(stats_of(bad).retried, 64U);
  works = true;
  advance(milliseconds(100));
  wait_until_idle();
  const std::uint64_t before = stats_of(bad).done;
  ask_all();
  EXPECT_FALSE(suspended(bad));
  EXPECT_GT(stats_of(bad).done, before + 1);
  EXPECT_EQ(failed.load(), 0U);
}

TEST_F(PoolSuspension, StatisticsAndTheLogSayWhy) {
  add_unsteady();
  add(good);
  take_log();
  suspend_bad();
  const DeviceStats stats = stats_of(bad);
  EXPECT_EQ(stats.suspended,
            "5 runs in a row failed here and succeeded on other devices; the last error: "
            "CUBLAS failure 13");
  EXPECT_EQ(stats.state, DeviceState::ready);
  EXPECT_EQ(stats.retried, 5U);
  EXPECT_EQ(stats.failed, 0U);
  const auto log = take_log();
  ASSERT_EQ(log.size(), 1U);
  EXPECT_EQ(log.front().severity, 2);
  EXPECT_NE(log.front().message.find("cuda:0 gets no requests until one succeeds there"), std::string::npos);
}

TEST_F(PoolSuspension, ASuspendedDeviceIsProbedAfterGrowingPauses) {
  const auto runner = add_unsteady();
  add(good);
  suspend_bad();
  std::size_t runs = runner->runs().size();
  for (const int pause : {100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000}) {
    advance(milliseconds(pause - 1));
    EXPECT_EQ(ask(), Outcome::done);
    EXPECT_EQ(runner->runs().size(), runs) << "before " << pause << " ms";
    advance(milliseconds(1));
    EXPECT_EQ(ask(), Outcome::done);
    EXPECT_EQ(ask(), Outcome::done);
    EXPECT_EQ(runner->runs().size(), ++runs) << "after " << pause << " ms";
  }
  works = true;
  advance(seconds(10));
  EXPECT_EQ(ask(), Outcome::done);
  EXPECT_FALSE(suspended(bad));
  suspend_bad();
  advance(milliseconds(100));  // the first pause again
  runs = runner->runs().size();
  ask();
  EXPECT_EQ(runner->runs().size(), runs + 1);
}

TEST_F(PoolSuspension, OneProbeRunsAtATime) {
  const auto first = add_unsteady();
  const auto second = add_unsteady();
  add(good);
  suspend_bad();
  const std::size_t runs = first->runs().size() + second->runs().size();
  first->hold();
  second->hold();
  advance(hours(1));
  const auto probe = submit();
  advance(hours(1));
  for (int i = 0; i < 5; ++i) {
    submit();
  }
  answers.wait_for(asked + 5);
  EXPECT_EQ(probe->outcome, Outcome::pending);
  works = true;
  first->release();
  second->release();
  answers.wait_for(asked + 6);
  EXPECT_EQ(first->runs().size() + second->runs().size(), runs + 1);
  EXPECT_FALSE(suspended(bad));
}

TEST_F(PoolSuspension, WhatWaitsAlreadyProbesToo) {
  const auto runner = add_unsteady();
  const auto other = add(good);
  suspend_bad();
  works = true;
  const auto waiting = wait_behind(other);
  submit();
  advance(milliseconds(100));
  other->release();
  answers.wait_for(asked + 3);
  EXPECT_FALSE(suspended(bad));
  EXPECT_EQ(waiting->ran_on, bad);
}

TEST_F(PoolSuspension, APoisonousRequestCountsAgainstNoDevice) {
  const auto poisonous = [](Request& request) {
    if (request.output_names.empty()) {
      fail_run();
    }
  };
  const auto first = add(bad);
  const auto second = add(good);
  first->action = poisonous;
  second->action = poisonous;
  for (int i = 0; i < 50; ++i) {
    const auto request = submit();
    answers.wait_for(++asked);
    EXPECT_EQ(request->outcome, Outcome::failed);
    EXPECT_EQ(text_of(*request), "CUBLAS failure 13");
    EXPECT_FALSE(suspended(bad));
    EXPECT_FALSE(suspended(good));
  }
  EXPECT_EQ(first->runs().size(), 50U);  // each request once on each device
  EXPECT_EQ(second->runs().size(), 50U);
}

TEST_F(PoolSuspension, ManyPoisonousRequestsAtOnceEndToo) {
  for (int device = 0; device < 3; ++device) {
    add(Device::cuda(device))->action = [](Request& request) {
      if (!request.output_names.empty()) {
        fail_run();
      }
    };
  }
  constexpr std::size_t count = 600;
  std::vector<std::shared_ptr<Request>> requests;
  requests.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    requests.push_back(answers.request());
    if (i % 3 != 0) {
      requests.back()->output_names = {"poison"};
    }
    submit(requests.back());
  }
  answers.wait_for(count);
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_EQ(requests[i]->outcome, i % 3 != 0 ? Outcome::failed : Outcome::done);
  }
  for (int device = 0; device < 3; ++device) {
    EXPECT_FALSE(suspended(Device::cuda(device)));
  }
}

TEST_F(PoolSuspension, ErrorsOfTheRequestAreNotTriedElsewhere) {
  const auto first = add(bad);
  const auto second = add(good);
  for (const auto& runner : {first, second}) {
    runner->action = [](Request&) { throw Error(ErrorKind::invalid_argument, "a wrong shape"); };
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(ask(), Outcome::failed);
  }
  EXPECT_EQ(first->runs().size() + second->runs().size(), 20U);
  EXPECT_EQ(stats_of(bad).retried + stats_of(good).retried, 0U);
}

TEST_F(PoolSuspension, RequestsWithTheCallersOptionsOrADeviceAreNotTriedElsewhere) {
  add_unsteady();
  const auto second = add(good);
  works = false;
  const Ort::RunOptions options;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(ask(bad), Outcome::failed);
    const auto request = answers.request();
    request->run_options = &options;
    submit(request);
    answers.wait_for(++asked);
    EXPECT_EQ(request->outcome, request->ran_on == bad ? Outcome::failed : Outcome::done);
  }
  EXPECT_FALSE(suspended(bad));
  EXPECT_EQ(stats_of(bad).retried, 0U);
}

TEST_F(PoolSuspension, ARequestForASuspendedDeviceRunsThereAndCanEndTheSuspension) {
  add_unsteady();
  add(good);
  suspend_bad();
  EXPECT_EQ(ask(bad), Outcome::failed);
  EXPECT_TRUE(suspended(bad));
  works = true;
  EXPECT_EQ(ask(bad), Outcome::done);
  EXPECT_FALSE(suspended(bad));
}

TEST_F(PoolSuspension, ASuccessBetweenFailuresEndsTheRow) {
  add_unsteady();
  add(good);
  for (int i = 0; i < 50; ++i) {
    works = i % 5 == 4;
    EXPECT_EQ(ask(), Outcome::done);
    EXPECT_EQ(ask(), Outcome::done);
    EXPECT_FALSE(suspended(bad)) << "in turn " << i;
    works = true;
    EXPECT_EQ(ask(bad), Outcome::done);
  }
  EXPECT_GE(stats_of(bad).retried, 10U);
}

TEST_F(PoolSuspension, TheLastDeviceIsNotSuspended) {
  add_unsteady();
  works = false;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(ask(), Outcome::failed);
  }
  EXPECT_FALSE(suspended(bad));
  EXPECT_EQ(stats_of(bad).retried, 0U);
}

class WithoutTheOtherDevice : public PoolSuspension, public testing::WithParamInterface<const char*> {};

TEST_P(WithoutTheOtherDevice, ASuspensionEnds) {
  add_unsteady();
  const auto other = add(good);
  suspend_bad();
  const auto waiting = wait_behind(other);
  works = true;
  const auto sleeper = std::make_shared<DeviceSleep>(SleepLevel::weights);
  EXPECT_FALSE(GetParam() == std::string("removed") ? pool->remove(good, Pool::Clock::now())
                                                    : pool->sleep(good, sleeper, Pool::Clock::now()));
  EXPECT_EQ(answers.wait_for(++asked).back(), waiting);
  EXPECT_EQ(waiting->ran_on, bad);
  EXPECT_FALSE(suspended(bad));
  pool->stay_awake(good, sleeper);
}

INSTANTIATE_TEST_SUITE_P(Which, WithoutTheOtherDevice, testing::Values("removed", "asleep"),
                         [](const auto& of) { return std::string(of.param); });

TEST_F(PoolSuspension, WhatIsTriedElsewhereRunsAgainWhereItFailedIfNoOtherDeviceIsLeft) {
  const auto runner = add_unsteady();
  add_busy();
  works = false;
  const auto request = submit();
  wait_for_retries(1);
  EXPECT_EQ(runner->runs().size(), 1U);
  works = true;
  EXPECT_FALSE(pool->remove(good, Pool::Clock::now()));
  EXPECT_EQ(answers.wait_for(1).front(), request);
  EXPECT_EQ(request->outcome, Outcome::done);
  EXPECT_EQ(request->ran_on, bad);
}

TEST_F(PoolSuspension, AFailingDeviceWaitsForTheVerdict) {
  const auto runner = add_unsteady();
  const auto other = add_busy();
  works = false;
  for (int i = 0; i < 100; ++i) {
    submit();
  }
  wait_for_retries(5);
  EXPECT_EQ(pool->stats().waiting, 100U);
  EXPECT_EQ(runner->runs().size(), 5U);
  other->release();
  for (const auto& request : answers.wait_for(101)) {
    EXPECT_EQ(request->outcome, Outcome::done);
  }
  EXPECT_TRUE(suspended(bad));
  EXPECT_EQ(runner->runs().size(), 5U);
}

TEST_F(PoolSuspension, CancellingWhatIsTriedElsewhereEndsTheWaitForTheVerdict) {
  add_unsteady();
  add_busy();
  works = false;
  std::vector<std::shared_ptr<Request>> requests;
  requests.reserve(6);
  for (int i = 0; i < 6; ++i) {
    requests.push_back(submit());
  }
  wait_for_retries(5);
  works = true;
  EXPECT_TRUE(pool->cancel(requests.front()));
  answers.wait_for(2);
  EXPECT_EQ(requests.back()->outcome, Outcome::done);
  EXPECT_EQ(requests.back()->ran_on, bad);
}

TEST_F(PoolSuspension, ARunInTheCallersThreadIsTriedElsewhereBySubmitting) {
  add_unsteady();
  add(good);
  works = false;
  for (int i = 0; i < 50; ++i) {
    const auto request = answers.request();
    if (!pool->run_here(*request)) {
      EXPECT_TRUE(pool->submit(request, std::nullopt));
      answers.wait_for(++asked);
      EXPECT_EQ(request->ran_on, good);
      wait_until_idle();
    }
    EXPECT_EQ(request->outcome, Outcome::done);
  }
  EXPECT_TRUE(suspended(bad));
  EXPECT_EQ(asked, 5U);
}

// Joint runs.

class JointSuspension : public PoolSuspension {
 protected:
  JointSuspension() { make({4, hours(1), 0, {}}); }

  // Its runs fail for a value of 13, and if `works` is false and it is the bad one.
  void add_summing(const Device& device) {
    add(device)->action = [this, device](Request& request) {
      const std::vector<float> values = numbers(request.inputs.values()[0]);
      {
        const std::lock_guard lock(mutex);
        sizes.push_back(values.size());
      }
      if (std::count(values.begin(), values.end(), 13) != 0 || (!works.load() && device == bad)) {
        fail_run();
      }
      Ort::Value y = tensor(shape_of(request.inputs.values()[0]));
      std::ranges::transform(values, y.GetTensorMutableData<float>(), [](float x) { return x + 1; });
      request.outputs.push_back(std::move(y));
    };
  }

  std::vector<std::shared_ptr<Request>> ask_for(const std::vector<float>& values) {
    std::vector<std::shared_ptr<Request>> requests;
    for (const float value : values) {
      requests.push_back(answers.request());
      requests.back()->output_names = {"y"};
      requests.back()->inputs.add("x", tensor({1, 1}, value));
      submit(requests.back());
    }
    asked += values.size();
    answers.wait_for(asked);
    wait_until_idle();
    return requests;
  }

  std::mutex mutex;
  std::vector<std::size_t> sizes;
};

TEST_F(JointSuspension, AJointRunIsTriedElsewhereAsAWhole) {
  add_summing(bad);
  add_summing(good);
  works = false;
  for (int round = 0; round < 30 && !suspended(bad); ++round) {
    for (const auto& request : ask_for({1, 2, 3, 4})) {
      EXPECT_EQ(request->outcome, Outcome::done);
      EXPECT_EQ(numbers(request->outputs[0])[0], numbers(request->inputs.values()[0])[0] + 1);
    }
  }
  EXPECT_TRUE(suspended(bad));
  EXPECT_EQ(std::count(sizes.begin(), sizes.end(), 4), static_cast<std::ptrdiff_t>(sizes.size()));
  EXPECT_EQ(stats_of(bad).runs, 5U);
  EXPECT_EQ(stats_of(bad).retried, 20U);
}

TEST_F(JointSuspension, AProbeIsOneRequest) {
  add_summing(bad);
  add_summing(good);
  works = false;
  while (!suspended(bad)) {
    ask_for({1, 2, 3, 4});
  }
  sizes.clear();
  works = true;
  advance(milliseconds(100));
  ask_for({1, 2, 3, 4, 5});
  EXPECT_FALSE(suspended(bad));
  EXPECT_EQ(sizes.size(), 2U);
  EXPECT_EQ(std::count(sizes.begin(), sizes.end(), 1), 1);
}

TEST_F(JointSuspension, OnePoisonousRequestOfAJointRunCountsAgainstNoDevice) {
  add_summing(bad);
  add_summing(good);
  for (int round = 0; round < 20; ++round) {
    for (const auto& request : ask_for({1, 13, 3, 4})) {
      const bool poisonous = numbers(request->inputs.values()[0])[0] == 13;
      EXPECT_EQ(request->outcome, poisonous ? Outcome::failed : Outcome::done);
    }
  }
  EXPECT_FALSE(suspended(bad));
  EXPECT_FALSE(suspended(good));
}

}  // namespace
}  // namespace ortmulti::tests
