// Whose turn it is: priorities and deadlines.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <future>
#include <memory>
#include <numeric>
#include <optional>
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
using All = std::vector<std::shared_ptr<Request>>;

class PoolTurns : public PoolWithFakes {
 protected:
  std::shared_ptr<Request> ask(int priority, std::optional<Pool::Clock::duration> timeout = {},
                               const std::optional<Device>& device = {}) {
    const auto made = request(device);
    made->priority = priority;
    if (timeout) {
      made->deadline = Pool::Clock::now() + *timeout;
    }
    return submit(made);
  }
  // What waited, in the order in which it was answered.
  All answered(const std::shared_ptr<FakeRunner>& runner, std::size_t count) {
    runner->release();
    All finished = answers.wait_for(count + 1);
    finished.erase(finished.begin());  // the one that kept it busy
    return finished;
  }
};

TEST_F(PoolTurns, HigherPrioritiesBeginFirst) {
  const auto runner = add(Device::cpu());
  keep_busy(runner);
  const auto low = ask(-1);
  const auto first = ask(0);
  const auto second = ask(0, {}, Device::cpu());
  const auto high = ask(7);
  EXPECT_EQ(answered(runner, 4), (All{high, first, second, low}));
}

TEST_F(PoolTurns, WithinAPriorityTheEarliestDeadlineIsFirst) {
  const auto runner = add(Device::cpu());
  keep_busy(runner);
  const auto late = ask(0, hours(2));
  const auto none = ask(0);
  const auto soon = ask(0, seconds(50));
  const auto sooner = ask(0, seconds(40));
  const auto high = ask(1, hours(3));
  EXPECT_EQ(answered(runner, 5), (All{high, sooner, soon, none, late})) << "without one it counts as a minute";
}

TEST_F(PoolTurns, LowerPrioritiesAreNotStarved) {
  const auto runner = add(Device::cpu());
  keep_busy(runner);
  All lower;
  for (const int priority : {0, 0, 3, -2}) {
    lower.push_back(ask(priority));
  }
  for (int i = 0; i < 200; ++i) {
    ask(9);
  }
  const All order = answered(runner, 204);
  const auto place = [&](std::size_t of) { return std::ranges::find(order, lower[of]) - order.begin(); };
  // After 15 of the highest each time: from the last one downwards, and then from above again.
  EXPECT_EQ((std::vector{place(3), place(2), place(0), place(1)}), (std::vector<std::ptrdiff_t>{15, 31, 47, 63}));
}

TEST_F(PoolTurns, AFullQueueGivesUpTheLowestForAHigherOne) {
  pool = Pool::make({2, {}});
  const auto runner = add(Device::cpu());
  keep_busy(runner);
  const auto first = ask(1);
  const auto last = ask(1);
  const auto try_it = [&](int priority) {
    const auto made = request();
    made->priority = priority;
    return pool->submit(made, Pool::Clock::now()) ? made : nullptr;
  };
  EXPECT_EQ(try_it(1), nullptr) << "it is not lower";
  EXPECT_EQ(answers.count(), 0U);
  const auto higher = try_it(2);
  ASSERT_NE(higher, nullptr);
  EXPECT_EQ(answers.wait_for(1), All{last});
  EXPECT_EQ(kind_of(*last), ErrorKind::queue_full);
  EXPECT_NE(text_of(*last).find("of priority 2 took the place of this one, of priority 1"), std::string::npos);
  EXPECT_EQ(pool->stats().failed_waiting, 1U);
  runner->release();
  const All all = answers.wait_for(4);
  EXPECT_EQ((All{all[2], all[3]}), (All{higher, first}));
}

TEST_F(PoolTurns, WhatWouldBeLateDoesNotMakeOthersLate) {
  const auto runner = add(Device::cpu());
  runner->action = [](Request&) { std::this_thread::sleep_for(milliseconds(50)); };
  for (std::size_t count = 1; count < 10; ++count) {  // it learns how long a run takes
    ask(0);
    answers.wait_for(count);
  }
  keep_busy(runner);
  const auto late = ask(0, milliseconds(40));
  const auto in_time = ask(0, hours(1));
  runner->release();
  answers.wait_for(12);
  EXPECT_EQ(in_time->outcome, Outcome::done);
  EXPECT_NE(text_of(*late).find("still waited"), std::string::npos) << text_of(*late);
  const auto runs = runner->runs();
  EXPECT_EQ(std::count(runs.begin(), runs.end(), late.get()), 0);
  const auto lucky = ask(0, milliseconds(40));  // nobody else wants the session
  answers.wait_for(13);
  EXPECT_EQ(runner->runs().back(), lucky.get());
}

TEST_F(PoolTurns, BackgroundWorkLeavesAPlaceFree) {
  const auto first = add(Device::cpu());
  const auto second = add(Device::cpu());
  first->hold();
  second->hold();
  const auto background = ask(-1);
  const auto more = ask(-1);
  EXPECT_EQ(stats_of(Device::cpu()).busy, 1U);
  const auto user = ask(0);
  EXPECT_EQ(stats_of(Device::cpu()).busy, 2U);
  const auto& with_user = first->runs().empty() || first->runs()[0] != user.get() ? second : first;
  with_user->release();
  answers.wait_for(1);
  ask(0);  // has the place again
  answers.wait_for(2);
  EXPECT_EQ(more->outcome, Outcome::pending);
  first->release();
  second->release();
  answers.wait_for(4);
  EXPECT_EQ(background->outcome, Outcome::done);
  EXPECT_EQ(more->outcome, Outcome::done);
}

TEST_F(PoolTurns, BackgroundWorkHasTheOnlyPlace) {
  add(Device::cpu());
  ask(-1);
  answers.wait_for(1);
}

TEST_F(PoolTurns, WhatWouldBeLateIsRefusedAtOnceIfAskedFor) {
  for (const bool rejects : {false, true}) {
    Pool::Options options;
    options.reject_late = rejects;
    pool->close(false);
    pool = Pool::make(options);
    answers.clear();
    const auto runner = add(Device::cpu());
    runner->action = [](Request&) { std::this_thread::sleep_for(milliseconds(10)); };
    const auto refuses = [&](Pool::Clock::duration timeout) {
      try {
        ask(0, timeout);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::deadline);
        EXPECT_NE(std::string(error.what()).find("a run takes 1"), std::string::npos) << error.what();
        return true;
      }
      return false;
    };
    EXPECT_FALSE(refuses(milliseconds(5))) << "nobody knows yet how long a run takes";
    for (std::size_t count = 2; count < 12; ++count) {
      ask(0);
      answers.wait_for(count);
    }
    while (pool->stats().devices[0].busy > 0) {  // it answers before it is idle
      std::this_thread::yield();
    }
    EXPECT_FALSE(refuses(milliseconds(5))) << "an idle session tries it: runs may have become shorter";
    answers.wait_for(12);
    keep_busy(runner);
    ask(1);
    ask(1);
    ask(-1);
    ask(0, hours(2));
    EXPECT_EQ(refuses(milliseconds(25)), rejects) << "two go before it";
    EXPECT_EQ(pool->stats().rejected, rejects ? 1U : 0U);
    EXPECT_FALSE(refuses(hours(1)));
    runner->release();
  }
}

// Whether the run that does not end when it is asked to, as within a long node, fails in the end.
class PoolDeadlines : public PoolTurns, public testing::WithParamInterface<bool> {
 protected:
  void add_deaf() {
    add(Device::cpu())->action = [this](Request& running) {
      runs.set_value();
      ends.get_future().wait();
      running.outputs.emplace_back(nullptr);
      if (GetParam()) {
        throw Error(ErrorKind::fail, "it failed later");
      }
    };
  }
  std::promise<void> runs;
  std::promise<void> ends;
};

INSTANTIATE_TEST_SUITE_P(Fails, PoolDeadlines, testing::Bool());

TEST_P(PoolDeadlines, ACallerIsFreeThoughItsRunGoesOn) {
  add_deaf();
  const auto late = ask(0, milliseconds(30));
  runs.get_future().wait();
  EXPECT_EQ(answers.wait_for(1), All{late});
  EXPECT_EQ(kind_of(*late), ErrorKind::deadline);
  EXPECT_NE(text_of(*late).find("was not answered within 30 ms"), std::string::npos) << text_of(*late);
  EXPECT_EQ(stats_of(Device::cpu()).failed, 1U);
  EXPECT_EQ(stats_of(Device::cpu()).busy, 1U) << "the session is";
  EXPECT_FALSE(pool->cancel(late)) << "it has ended";
  ends.set_value();
  pool->close(false);
  const DeviceStats stats = stats_of(Device::cpu());
  EXPECT_EQ(stats.failed, 1U);
  EXPECT_EQ(stats.done, 0U);
  EXPECT_EQ(stats.run.count(), 1U);
  EXPECT_EQ(answers.count(), 1U) << "it was answered twice";
  EXPECT_EQ(kind_of(*late), ErrorKind::deadline);
}

// Several runs of one session may be under way on a GPU.
class GrowingPool : public PoolWithFakes {
 protected:
  void make(const Pool::WhyNot& why_not, Batching batching = {}, int most = 3) {
    pool = Pool::make(
        {.max_waiting = {}, .batching = std::move(batching), .now = [this] { return now.load(); }, .cores = 16});
    std::vector<std::shared_ptr<Runner>> runners;
    for (int i = 0; i < most; ++i) {
      const auto runner = std::make_shared<FakeRunner>(Device::cuda(0), this);
      runner->action = [this](Request&) { now = now.load() + milliseconds(25); };
      fakes.push_back(runner);
      runners.push_back(runner);
    }
    pool->add(runners, 3);
    pool->grow_from_one(why_not);
  }
  void answer(std::size_t count) {
    for (const auto& fake : fakes) {
      fake->hold();  // so that requests wait
    }
    for (std::size_t i = 0; i < count; ++i) {
      submit();
    }
    for (const auto& fake : fakes) {
      fake->release();
    }
    answers.wait_for(done += count);
  }

  std::atomic<Pool::Clock::time_point> now{Pool::Clock::time_point(std::chrono::hours(1))};
  std::vector<std::shared_ptr<FakeRunner>> fakes;
  std::size_t done = 0;
};

TEST_F(GrowingPool, HasOneRunAtFirst) {
  make({});
  for (const auto& fake : fakes) {
    fake->hold();
  }
  submit();
  submit();
  const auto runs = [this] {
    return std::accumulate(fakes.begin(), fakes.end(), std::size_t{0},
                           [](std::size_t sum, const auto& fake) { return sum + fake->runs().size(); });
  };
  while (runs() == 0) {
    std::this_thread::yield();
  }
  EXPECT_EQ(pool->stats().devices[0].in_flight, 1U);
  EXPECT_EQ(pool->stats().waiting, 1U);
  EXPECT_EQ(runs(), 1U);
  for (const auto& fake : fakes) {
    fake->release();
  }
  answers.wait_for(2);
}

TEST_F(GrowingPool, TriesMoreUnlessSomebodyIsAgainstIt) {
  make([](const Device&) { return std::string("the budget is used up"); });
  answer(200);
  EXPECT_EQ(pool->stats().devices[0].in_flight, 1U);
  EXPECT_NE(pool->stats().devices[0].why_in_flight.find("no more were tried: the budget is used up"), std::string::npos)
      << pool->stats().devices[0].why_in_flight;
  pool->close(true);
  fakes.clear();
  make([](const Device&) { return std::string(); });
  answer(400);
  EXPECT_NE(pool->stats().devices[0].why_in_flight.find(" with 3"), std::string::npos)
      << pool->stats().devices[0].why_in_flight;
}

TEST_F(GrowingPool, HasThreePaddedRunsAtMost) {
  const auto answered_with = [this](Batching batching) {
    make([](const Device&) { return std::string(); }, std::move(batching), 12);
    answer(800);
    std::string why = pool->stats().devices[0].why_in_flight;
    pool->close(true);
    fakes.clear();
    return why;
  };
  EXPECT_NE(answered_with({}).find(" with 4"), std::string::npos);
  Batching with_padding;
  with_padding.padding = std::make_shared<Padding>();
  const std::string padded = answered_with(with_padding);
  EXPECT_NE(padded.find(" with 3"), std::string::npos) << padded;
  EXPECT_EQ(padded.find(" with 4"), std::string::npos) << padded;
}

}  // namespace
}  // namespace ortmulti::tests
