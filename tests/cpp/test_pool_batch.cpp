#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/policy/batch_wait.hpp"
#include "core/policy/numbers.hpp"
#include "core/pool/batch_traits.hpp"
#include "core/pool/joint_request.hpp"
#include "fake_runner.hpp"

namespace ortmulti::tests {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using Outcome = Request::Outcome;
using Shape = std::vector<std::int64_t>;

std::vector<float> doubled(std::vector<float> values) {
  for (float& value : values) {
    value *= 2;
  }
  return values;
}

// The session: y = 2 x.
void twice(Request& request) {
  Ort::Value y = tensor(shape_of(request.inputs.values()[0]));
  const std::vector<float> values = doubled(numbers(request.inputs.values()[0]));
  std::ranges::copy(values, y.GetTensorMutableData<float>());
  request.outputs.push_back(std::move(y));
}

class BatchTest : public PoolWithFakes {
 protected:
  using PoolWithFakes::submit;

  void make(const Batching& batching) {
    pool = Pool::make({{}, batching});
    runner = add(Device::cpu());
    runner->action = [this](Request& request) {
      twice(request);
      sizes.push_back(shape_of(request.inputs.values()[0])[0]);
    };
  }

  std::shared_ptr<Request> request_of(const Shape& shape, float first = 0) {
    auto request = answers.request();
    request->output_names = {"y"};
    request->inputs.add("x", tensor(shape, first));
    return request;
  }
  std::shared_ptr<Request> submit(const Shape& shape, float first = 0) { return submit(request_of(shape, first)); }
  // Runs a request until the runner is released.
  std::shared_ptr<Request> keep_busy(const Shape& shape) {
    runner->hold();
    auto running = submit(shape);
    runner->wait_for_runs(1);
    return running;
  }
  static void expect_doubled(const Request& request) {
    ASSERT_EQ(request.outcome, Outcome::done);
    EXPECT_EQ(shape_of(request.outputs.at(0)), shape_of(request.inputs.values()[0]));
    EXPECT_EQ(numbers(request.outputs[0]), doubled(numbers(request.inputs.values()[0])));
  }

  std::vector<std::int64_t> sizes;  // of the runs
  std::shared_ptr<FakeRunner> runner;
};

TEST_F(BatchTest, WhatWaitsRunsTogether) {
  make({8, milliseconds(0), 0, {}});
  keep_busy({1, 3});
  for (int i = 0; i < 6; ++i) {
    submit({1 + i % 2, 3}, static_cast<float>(10 * i));
  }
  runner->release();
  for (const auto& request : answers.wait_for(7)) {
    expect_doubled(*request);
  }
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{1, 7, 2}));  // of 1 + 2 + 1 + 2 + 1 + 2, in their order
}

TEST_F(BatchTest, RequestsForTheDeviceAndForAnyAreBatchedInTheOrderInWhichTheyCame) {
  make({3, milliseconds(0), 0, {}});
  keep_busy({1, 3});
  std::shared_ptr<Request> last;
  for (int i = 0; i < 4; ++i) {
    last = request_of({1, 3});
    last->device = i % 2 == 0 ? std::nullopt : std::optional(Device::cpu());
    submit(last);
  }
  runner->release();
  EXPECT_EQ(answers.wait_for(5).back(), last);
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{1, 3, 1}));
}

TEST_F(BatchTest, OneBatchFormsAtATime) {
  constexpr std::size_t rounds = 200;
  pool = Pool::make({{}, {4, milliseconds(200), 0, {}}, [] { return Pool::Clock::time_point(); }});
  std::atomic<std::size_t> runs{0};
  for (int i = 0; i < 3; ++i) {
    add(Device::cpu())->action = [&runs](Request& request) {
      twice(request);
      ++runs;
    };
  }
  for (std::size_t round = 1; round <= rounds; ++round) {
    for (int i = 0; i < 4; ++i) {
      submit({1, 2}, static_cast<float>(i));
    }
    answers.wait_for(4 * round);
  }
  EXPECT_EQ(runs.load(), rounds);
}

TEST_F(BatchTest, WhatIsCancelledBeforeItsBatchBeganLeavesTheSessionIdle) {
  make({2, hours(1), 0, {}});
  for (int i = 0; i < 200; ++i) {
    const auto request = submit({1, 2});
    EXPECT_TRUE(pool->cancel(request));
    EXPECT_EQ(request->outcome, Outcome::cancelled);
  }
  EXPECT_TRUE(sizes.empty());
  const auto first = submit({1, 2});
  const auto second = submit({1, 2});
  answers.wait_for(202);
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{2}));
  EXPECT_EQ(pool->stats().devices[0].cancelled + pool->stats().cancelled_waiting, 200U);
}

TEST_F(BatchTest, IsPaddedWithItsLastRow) {
  for (const std::size_t axis : {0U, 1U}) {
    const Shape shape = axis == 0 ? Shape{1, 2} : Shape{2, 1};
    const std::vector<JointSize> one_row(2, {1, 0, 0, 0});
    const auto joint = join({request_of(shape, 1), request_of(shape, 5)}, one_row, {4, milliseconds(0), axis, {4}});
    const std::vector<float> values = numbers(joint->inputs.values()[0]);
    EXPECT_EQ(values,
              axis == 0 ? (std::vector<float>{1, 2, 5, 6, 5, 6, 5, 6}) : (std::vector<float>{1, 5, 5, 5, 2, 6, 6, 6}));
  }
}

TEST_F(BatchTest, WhatFailsPaddedRunsAsItIs) {
  make({4, milliseconds(0), 0, {4}});
  runner->action = [this](Request& request) {
    sizes.push_back(shape_of(request.inputs.values()[0])[0]);
    if (sizes.back() == 4) {
      throw Error(ErrorKind::fail, "too large");
    }
    twice(request);
  };
  const auto request = submit({3, 2}, 1);
  answers.wait_for(1);
  EXPECT_EQ(request->outcome, Outcome::done);
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{4, 3}));
}

TEST_F(BatchTest, WaitsNoLongerThanTheDelay) {
  make({100, milliseconds(20), 0, {}});
  const auto request = submit({1, 2});
  answers.wait_for(1);
  EXPECT_GE(request->started - request->submitted, milliseconds(20));
}

TEST_F(BatchTest, OtherShapesRunApart) {
  make({8, milliseconds(0), 0, {}});
  keep_busy({1, 3});
  submit({1, 3});
  const auto other = submit({1, 4});
  submit({2, 3});
  runner->release();
  answers.wait_for(4);
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{1, 3, 1}));
  EXPECT_EQ(shape_of(other->outputs[0]), (Shape{1, 4}));
}

TEST_F(BatchTest, RequestsThatFindOnlyUnlikeOnesAreCountedWithAnExample) {
  make({8, milliseconds(0), 0, {}});
  keep_busy({1, 3});
  EXPECT_EQ(pool->stats().unlike, 0U);
  submit({1, 4});
  submit({1, 5});
  submit({2, 5});
  submit({1, 6});
  runner->release();
  answers.wait_for(5);
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{1, 1, 3, 1}));
  // Of 4 columns, while others wait. Those of 5 find each other, and behind that of 6 nobody waits.
  EXPECT_EQ(pool->stats().unlike, 1U);
  EXPECT_EQ(pool->stats().why_unlike, "input 'x' has the shapes (1, 4) and (1, 6)");
}

TEST_F(BatchTest, AnotherAxis) {
  make({8, hours(1), 1, {}});
  runner->action = [](Request& request) { twice(request); };
  submit({2, 5, 2}, 0);
  submit({2, 3, 2}, 100);
  for (const auto& request : answers.wait_for(2)) {
    expect_doubled(*request);
  }
  EXPECT_EQ(pool->stats().devices.front().runs, 1U);
}

TEST_F(BatchTest, WhatCannotBeBatchedRunsAlone) {
  make({4, hours(1), 0, {}});
  runner->action = [](Request&) {};
  submit(Shape{});
  submit(Shape{0, 3});
  submit(answers.request());  // without inputs
  const auto mixed = request_of({1, 2});
  mixed->inputs.add("z", tensor({2, 2}));
  submit(mixed);
  submit({9, 1});
  answers.wait_for(5);  // though the delay is an hour
  EXPECT_EQ(pool->stats().devices.front().runs, 5U);
}

TEST_F(BatchTest, ABadRequestFailsAlone) {
  make({3, hours(1), 0, {}});
  runner->action = [](Request& request) {
    const std::vector<float> values = numbers(request.inputs.values()[0]);
    if (std::count(values.begin(), values.end(), 13) != 0) {
      throw Error(ErrorKind::invalid_argument, "unlucky");
    }
    twice(request);
  };
  const auto one = submit({1, 1}, 1);
  const auto bad = submit({1, 1}, 13);
  const auto two = submit({1, 1}, 2);
  answers.wait_for(3);
  expect_doubled(*one);
  expect_doubled(*two);
  EXPECT_EQ(bad->outcome, Outcome::failed);
  EXPECT_EQ(text_of(*bad), "unlucky");
}

TEST_F(BatchTest, ARunThatFailsIsNoReasonToKeepRequestsApart) {
  make({2, hours(1), 0, {}});
  const auto fine = runner->action;
  runner->action = [](Request&) { throw Error(ErrorKind::invalid_argument, "not now"); };
  submit({1, 1});
  submit({1, 1});
  answers.wait_for(2);
  runner->action = fine;
  submit({1, 1});
  submit({1, 1});
  answers.wait_for(4);
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{2}));
  EXPECT_EQ(pool->stats().unbatched, 0U);
  EXPECT_EQ(pool->stats().why_unbatched, "");
}

TEST_F(BatchTest, CancelledMembersLeaveTheOthersAlone) {
  make({3, hours(1), 0, {}});
  const auto kept = submit({1, 1}, 5);
  const auto cancelled = submit({1, 1}, 6);
  EXPECT_TRUE(pool->cancel(cancelled));
  EXPECT_EQ(answers.wait_for(1).front(), cancelled);
  EXPECT_EQ(cancelled->outcome, Outcome::cancelled);
  const auto next = submit({1, 1}, 7);
  const auto last = submit({1, 1}, 8);
  answers.wait_for(4);
  for (const auto& request : {kept, next, last}) {
    expect_doubled(*request);
  }
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{3}));
}

TEST_F(BatchTest, ABatchMayLoseAllOfItsRequests) {
  make({3, hours(1), 0, {}});
  EXPECT_TRUE(pool->cancel(submit({1, 1}, 5)));
  const auto one = submit({1, 1}, 6);
  const auto other = submit({1, 1}, 7);
  EXPECT_TRUE(pool->cancel(one));
  EXPECT_TRUE(pool->cancel(other));
  answers.wait_for(3);
  EXPECT_TRUE(runner->runs().empty());
  for (int i = 0; i < 3; ++i) {
    submit({1, 1});
  }
  answers.wait_for(6);
}

TEST_F(BatchTest, BackgroundWorkDoesNotMakeAUsersRunLonger) {
  make({8, milliseconds(0), 0, {}});
  keep_busy({1, 1});
  for (const int priority : {-1, 0, -2, 3}) {
    const auto request = request_of({1, 1}, 3);
    request->priority = priority;
    submit(request);
  }
  runner->release();
  answers.wait_for(5);
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{1, 2, 2}));
  EXPECT_EQ(pool->stats().unlike, 0U);
}

TEST_F(BatchTest, OneOfAJointRunMayBeLateForItsDeadline) {
  make({2, hours(1), 0, {}});
  runner->hold();
  const auto late = request_of({1, 1}, 3);
  late->deadline = Pool::Clock::now() + milliseconds(100);
  submit(late);
  const auto other = submit({1, 1}, 4);
  runner->wait_for_runs(1);
  EXPECT_EQ(answers.wait_for(1), Requests{late});
  EXPECT_EQ(kind_of(*late), ErrorKind::deadline);
  runner->release();
  EXPECT_EQ(answers.wait_for(2)[1], other);
  expect_doubled(*other);
  pool->close(false);
  EXPECT_EQ(answers.count(), 2U);
  EXPECT_EQ(stats_of(Device::cpu()).done, 1U);
  EXPECT_EQ(stats_of(Device::cpu()).failed, 1U);
}

TEST_F(BatchTest, ARunEndsWhenNobodyWantsAnyOfItsRequests) {
  make({2, hours(1), 0, {}});
  runner->hold();
  const auto one = submit({1, 1});
  const auto two = submit({1, 1});
  runner->wait_for_runs(1);
  EXPECT_TRUE(pool->cancel(one));
  EXPECT_EQ(answers.count(), 0U);
  EXPECT_TRUE(pool->cancel(two));
  answers.wait_for(2);
  EXPECT_EQ(one->outcome, Outcome::cancelled);
  EXPECT_EQ(two->outcome, Outcome::cancelled);
}

TEST_F(BatchTest, WhatIsCancelledWhileItIsJoinedDoesNotRun) {
  make({2, hours(1), 0, {}});
  runner->hold();  // a run that nobody ends goes on
  for (int i = 0; i < 50; ++i) {
    const auto one = submit({1, 1 << 20});
    const auto two = submit({1, 1 << 20});
    const auto until = Pool::Clock::now() + i * std::chrono::microseconds(50);
    while (Pool::Clock::now() < until) {
    }
    pool->cancel(one);
    pool->cancel(two);
    const auto ended = std::async(std::launch::async, [&] { answers.wait_for(2 * static_cast<std::size_t>(i) + 2); });
    const bool in_time = ended.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
    runner->release();
    ASSERT_TRUE(in_time) << "in turn " << i;
    runner->hold();
  }
  runner->release();
}

TEST_F(BatchTest, CloseDoesNotWaitForMore) {
  make({8, hours(1), 0, {}});
  const auto request = submit({1, 1}, 4);
  pool->close(false);
  expect_doubled(*request);
}

// A pool by whose clock a run takes as many milliseconds as `time_of` says of its rows.
class JoinedRowsTest : public BatchTest {
 protected:
  void make_timed(const Device& device, const std::function<int(std::int64_t)>& time_of) {
    Pool::Options options;
    options.batching = {8, milliseconds(0), 0, {}};
    options.now = [this] { return Pool::Clock::time_point(milliseconds(now.load())); };
    pool = Pool::make(options);
    runner = add(device);
    runner->action = [this, time_of](Request& request) {
      twice(request);
      sizes.push_back(shape_of(request.inputs.values()[0])[0]);
      now += time_of(sizes.back());
    };
  }
  // One request runs while others wait for two full runs. Returns the most rows that ran together.
  std::int64_t most_joined() {
    sizes.clear();
    const std::size_t before = runner->runs().size();
    runner->hold();
    submit({1, 1});
    runner->wait_for_runs(before + 1);
    for (int i = 0; i < 16; ++i) {
      submit({1, 1});
    }
    runner->release();
    submitted += 17;
    answers.wait_for(submitted);
    while (pool->stats().devices[0].busy != 0) {  // it answers first, and is idle then
      std::this_thread::yield();
    }
    return std::ranges::max(sizes);
  }
  std::int64_t most_joined_after(int rounds) {
    std::int64_t most = 0;
    for (int i = 0; i < rounds; ++i) {
      most = most_joined();
    }
    return most;
  }

  std::atomic<int> now{0};
  std::size_t submitted = 0;
};

TEST_F(JoinedRowsTest, AreNoneOnTheCpuWhereJoiningGainsNothing) {
  make_timed(Device::cpu(), [](std::int64_t rows) { return static_cast<int>(10 * rows); });
  EXPECT_EQ(most_joined(), 8);
  EXPECT_EQ(most_joined_after(50), 1);
  EXPECT_NE(pool->stats().devices[0].why_rows.find("in runs of 8"), std::string::npos);
}

TEST_F(JoinedRowsTest, AreAllThatWaitWhereJoiningGains) {
  make_timed(Device::cpu(), [](std::int64_t rows) { return static_cast<int>(10 + rows); });
  EXPECT_EQ(most_joined_after(50), 8);
}

TEST_F(JoinedRowsTest, AreAllThatWaitOnAGpu) {
  make_timed(Device::cuda(0), [](std::int64_t rows) { return static_cast<int>(10 * rows); });
  EXPECT_EQ(most_joined_after(50), 8);
  EXPECT_EQ(pool->stats().devices[0].why_rows, "");
}

// A pool by whose clock a run takes a time by default of 100 hours, so that a session waits up to 10 for the clients
// that it has answered.
class BatchWaitTest : public BatchTest {
 protected:
  void make_slow(std::chrono::nanoseconds max_delay, std::chrono::nanoseconds run = hours(100)) {
    Pool::Options options;
    options.batching = {8, max_delay, 0, {}};
    options.now = [this] { return Pool::Clock::time_point(now.load()); };
    pool = Pool::make(options);
    runner = add(Device::cpu());
    runner->action = [this, run](Request& request) {
      twice(request);
      sizes.push_back(shape_of(request.inputs.values()[0])[0]);
      now = now.load() + run;
    };
  }
  // Requests whose own delay is over.
  void submit_late(int count) {
    for (int i = 0; i < count; ++i) {
      const auto request = request_of({1, 1});
      request->submitted = Pool::Clock::now() - hours(2);
      submit(request);
    }
  }
  // One runs, and then three that have waited meanwhile are taken.
  void run_one_and_take_three() {
    runner->hold();
    submit_late(1);
    runner->wait_for_runs(1);
    submit_late(3);
    runner->release();
    while (pool->stats().waiting != 0) {
      std::this_thread::yield();
    }
  }

  void wait_until_idle() const {  // it answers first
    while (pool->stats().devices[0].busy != 0) {
      std::this_thread::yield();
    }
  }

  std::atomic<std::chrono::nanoseconds> now{};
};

TEST_F(BatchWaitTest, ARunWaitsForTheClientsThatWereJustAnswered) {
  for (const auto delay : {hours(1), hours(0)}) {
    make_slow(delay);
    run_one_and_take_three();
    submit_late(1);
    answers.wait_for(5);
    EXPECT_EQ(sizes, (std::vector<std::int64_t>{1, 4}));
    wait_until_idle();
    submit_late(4);  // to an idle session, which has answered four
    answers.wait_for(9);
    EXPECT_EQ(sizes, (std::vector<std::int64_t>{1, 4, 4}));
    sizes.clear();
    answers.clear();
  }
}

TEST_F(BatchWaitTest, TheWaitEndsWhenNobodyCame) {
  for (const auto& [delay, run] :
       {std::pair<std::chrono::nanoseconds, std::chrono::nanoseconds>(milliseconds(1), hours(100)),
        {milliseconds(0), milliseconds(100)}}) {
    make_slow(delay, run);
    run_one_and_take_three();
    answers.wait_for(4);
    EXPECT_EQ(sizes, (std::vector<std::int64_t>{1, 3})) << delay.count();
    sizes.clear();
    answers.clear();
  }
}

TEST_F(BatchWaitTest, WhoIsAloneDoesNotWait) {
  make_slow(hours(1));
  std::size_t sent = 0;
  for (; sent < 3 * *numbers::batch_wait_whole_delays; ++sent) {  // of which a few may come too late to wait
    const auto request = request_of({1, 1});
    request->submitted = Pool::Clock::now() - hours(1) + milliseconds(100);  // which are left of its delay
    submit(request);
    answers.wait_for(sent + 1);
    wait_until_idle();
  }
  sizes.clear();
  std::promise<void> done;
  std::function<void()> ask = [&, left = 5]() mutable {
    const auto request = request_of({1, 1});
    request->receiver = std::make_shared<Calls>([&](const auto& /*finished*/) {
      --left == 0 ? done.set_value() : ask();  // before the session is free again
    });
    submit(request);
  };
  ask();
  done.get_future().wait();
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{1, 1, 1, 1, 1}));
  for (std::size_t i = 1; i < 4; ++i) {
    submit(request_of({1, 1}));  // to an idle session
    answers.wait_for(sent + i);
  }
  pool->set_outputs({"m", {}, {}, false, false});  // those were trials of the model
  for (int i = 0; i < 8; ++i) {
    submit(request_of({1, 1}));
  }
  answers.wait_for(sent + 11);
  EXPECT_EQ(sizes.back(), 8);
}

TEST_F(BatchWaitTest, RunsThatWereFullAtOnceSayNothingOfDelays) {
  make_slow(hours(1));
  runner->hold();
  for (std::size_t i = 0; i < 8 * (*numbers::batch_wait_whole_delays + 2); ++i) {
    submit(request_of({1, 1}));
  }
  runner->release();
  const std::size_t sent = 8 * (*numbers::batch_wait_whole_delays + 2);
  answers.wait_for(sent);
  wait_until_idle();
  sizes.clear();
  for (int i = 0; i < 8; ++i) {
    submit(request_of({1, 1}));
  }
  answers.wait_for(sent + 8);
  EXPECT_EQ(std::ranges::count(sizes, 1), 0);
}

TEST_F(BatchTest, ADeadlineBeforeTheEndOfTheDelayIsMet) {
  make({8, hours(1), 0, {}});
  const auto alone = request_of({1, 1});
  alone->deadline = Pool::Clock::now() + std::chrono::minutes(1);
  alone->submitted = Pool::Clock::now() - std::chrono::minutes(1);  // half of the time has passed
  submit(alone);
  answers.wait_for(1);
  EXPECT_EQ(alone->outcome, Outcome::done);
  submit(request_of({1, 1}));
  const auto soon = request_of({1, 1});
  soon->deadline = Pool::Clock::now() + std::chrono::minutes(1);
  soon->submitted = Pool::Clock::now() - std::chrono::minutes(1);
  submit(soon);
  answers.wait_for(3);
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{1, 2}));
}

TEST_F(BatchTest, ADeadlineThatIsFarDoesNotEndTheDelay) {
  make({3, hours(1), 0, {}});
  submit(request_of({1, 1}));
  const auto later = request_of({1, 1});
  later->deadline = Pool::Clock::now() + std::chrono::minutes(50);  // the batch begins in 25 minutes
  submit(later);
  submit(request_of({1, 1}));
  answers.wait_for(3);
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{3}));
}

TEST_F(BatchTest, WhoWaitsForRoomDoesNotWaitForABatchThatWaitsForOthers) {
  pool = Pool::make({.max_waiting = 0, .batching = {8, hours(1), 0, {}}});
  runner = add(Device::cpu());
  runner->action = [this](Request& request) { twice(request); };
  submit(request_of({1, 1}));
  EXPECT_TRUE(pool->submit(request_of({1, 2}), Pool::Clock::now() + hours(1)));
  answers.wait_for(1);
  EXPECT_TRUE(pool->submit(request_of({1, 1}), Pool::Clock::now() + hours(1)));
  answers.wait_for(2);
  static_cast<void>(pool->close(true));
}

TEST_F(BatchTest, NobodyWaitsBehindABatchThatWaitsForOthers) {
  make({8, hours(1), 0, {}});
  submit(request_of({1, 1}));
  submit(request_of({1, 2}));  // of another shape
  submit(request_of({9, 2}));  // too large to be joined
  answers.wait_for(3);
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{1, 1, 9}));
  submit(request_of({5, 1}));
  submit(request_of({4, 1}));  // together they are too many
  answers.wait_for(4);
  const auto background = request_of({9, 1});
  background->priority = -1;
  submit(background);
  EXPECT_EQ(pool->stats().devices[0].done, 4U) << "the second one waits for others all the same";
  submit(request_of({4, 1}));
  answers.wait_for(7);
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{1, 1, 9, 5, 8, 9}));
}

TEST_F(BatchTest, RunsShorterThanAHandOverAreTheirCallersUnlessTheyShallWait) {
  const auto is_run_here = [&] {
    Request here;
    here.output_names = {"y"};
    here.inputs.add("x", tensor({1, 3}, 5));
    const bool is = pool->run_here(here);
    if (is) {
      expect_doubled(here);
    }
    return is;
  };
  const auto open = [&](const Device& device, const Batching& batching, std::chrono::nanoseconds hand_over) {
    if (pool) {
      pool->close(false);
    }
    Pool::Options options;
    options.batching = batching;
    options.hand_over = hand_over;
    pool = Pool::make(options);
    runner = add(device);
    runner->action = twice;
    answers.clear();
    for (std::size_t i = 1; i <= *numbers::queue_min_runs; ++i) {
      EXPECT_FALSE(is_run_here()) << "nobody knows yet how long a run takes";
      submit({1, 3});
      answers.wait_for(i);
      while (pool->stats().devices[0].busy > 0) {  // it answers before it is idle
        std::this_thread::yield();
      }
    }
  };
  const Batching batching{8, milliseconds(0), 0, {}};
  open(Device::cpu(), batching, hours(1));
  EXPECT_TRUE(is_run_here());
  keep_busy({1, 3});
  EXPECT_FALSE(is_run_here());
  runner->release();
  open(Device::cpu(), batching, std::chrono::nanoseconds(0));
  EXPECT_FALSE(is_run_here()) << "to hand over takes no time";
  open(Device::cuda(0), batching, hours(1));
  EXPECT_FALSE(is_run_here()) << "kernels run later than that";
  open(Device::cpu(), {8, std::chrono::nanoseconds(1), 0, {}}, hours(1));
  EXPECT_FALSE(is_run_here()) << "it shall wait for others";
  open(Device::cpu(), {8, milliseconds(0), 0, {8}}, hours(1));
  EXPECT_FALSE(is_run_here()) << "it gets more rows";
}

TEST(BatchWait, WaitsForATenthOfTheTimeBetweenRuns) {
  BatchWait batch_wait;
  EXPECT_EQ(batch_wait.longest_wait(1).count(), 0);
  batch_wait.record_run(32, 0, milliseconds(20));
  EXPECT_EQ(batch_wait.longest_wait(1), milliseconds(2));
  EXPECT_EQ(batch_wait.longest_wait(4), std::chrono::microseconds(500));
  batch_wait.record_run(16, 0, milliseconds(100));
  EXPECT_EQ(batch_wait.longest_wait(1), milliseconds(6));
  for (int i = 0; i < 100; ++i) {
    batch_wait.record_run(1, 0, std::chrono::microseconds(400));
  }
  EXPECT_EQ(batch_wait.longest_wait(1).count(), 0);  // a thread needs as long to wake up
}

TEST(BatchWait, AsManyAreExpectedAsWereThere) {
  BatchWait batch_wait;
  EXPECT_EQ(batch_wait.enough(0, 64), 64U) << "nobody is known";
  batch_wait.record_run(8, 0, milliseconds(1));
  EXPECT_EQ(batch_wait.enough(0, 64), 8U);
  EXPECT_EQ(batch_wait.enough(5, 64), 13U) << "beside those that waited";
  EXPECT_EQ(batch_wait.enough(5, 10), 10U);
  batch_wait.record_run(5, 6, milliseconds(1));
  EXPECT_EQ(batch_wait.enough(0, 64), 11U) << "who did not come into the run was there, too";
  EXPECT_EQ(batch_wait.enough(3, 64), 8U);
  for (int i = 0; i < 4; ++i) {
    batch_wait.record_run(1, 0, milliseconds(1));
  }
  EXPECT_EQ(batch_wait.enough(0, 64), 1U);
}

TEST(BatchWait, ADelayEndsEarlyOnlyAfterWholeOnesThatBroughtNobodyElse) {
  BatchWait batch_wait;
  const auto wait_in_vain = [&batch_wait](std::size_t times) {
    for (std::size_t i = 0; i < times; ++i) {
      batch_wait.record_delay(3, 4, 1);
    }
  };
  wait_in_vain(*numbers::batch_wait_whole_delays - 1);
  EXPECT_FALSE(batch_wait.ends_delays(1));
  batch_wait.record_delay(5, 4, 2);
  wait_in_vain(*numbers::batch_wait_whole_delays - 1);
  EXPECT_FALSE(batch_wait.ends_delays(1));
  batch_wait.record_delay(4, 4, 1);
  batch_wait.record_run(4, 0, milliseconds(1));
  EXPECT_TRUE(batch_wait.ends_delays(1));
  for (std::size_t i = 1; i < *numbers::batch_wait_runs_between_delays; ++i) {
    EXPECT_TRUE(batch_wait.ends_delays(1));
    batch_wait.record_run(4, 0, milliseconds(1));
  }
  EXPECT_FALSE(batch_wait.ends_delays(1)) << "once in a while";
  batch_wait.record_run(4, 0, milliseconds(1));
  EXPECT_TRUE(batch_wait.ends_delays(0));
  EXPECT_FALSE(batch_wait.ends_delays(2)) << "clients of the others may come";
  for (std::size_t i = 0; i < *numbers::batch_wait_whole_delays; ++i) {
    EXPECT_FALSE(batch_wait.ends_delays(2));
    batch_wait.record_delay(4, 4, 2);
  }
  EXPECT_TRUE(batch_wait.ends_delays(2));
}

TEST(BatchWait, IsTriedLessOftenWhileItBringsNothing) {
  BatchWait batch_wait;
  const auto tried_after = [&batch_wait] {
    int skipped = 0;
    for (; !batch_wait.tries(); ++skipped) {
    }
    return skipped;
  };
  EXPECT_EQ(tried_after(), 0);
  for (const int skipped : {1, 3, 7, 15, 31, 63, 63}) {
    batch_wait.record_wait(15, 32);
    EXPECT_EQ(tried_after(), skipped);
  }
  batch_wait.record_wait(16, 32);
  EXPECT_EQ(tried_after(), 0);
  EXPECT_EQ(tried_after(), 0);
}

// Collects what comes together.
class Together : public Receiver {
 public:
  void receive(std::vector<std::shared_ptr<Request>> finished) noexcept override {
    const std::lock_guard lock(mutex_);
    count_ += finished.size();
    calls_.push_back(std::move(finished));
    changed_.notify_all();
  }
  std::vector<std::vector<std::shared_ptr<Request>>> wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return count_ >= count; });
    return calls_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t count_ = 0;
  std::vector<std::vector<std::shared_ptr<Request>>> calls_;
};

TEST_F(BatchTest, AReceiverGetsTheRequestsOfAJointRunTogether) {
  make({4, hours(1), 0, {}});
  const auto one = std::make_shared<Together>();
  const auto other = std::make_shared<Together>();
  std::vector<std::shared_ptr<Request>> requests;
  for (const auto& receiver : {one, other, one, one}) {
    requests.push_back(request_of({1, 2}));
    requests.back()->receiver = receiver;
    submit(requests.back());
  }
  using Calls = std::vector<std::vector<std::shared_ptr<Request>>>;
  EXPECT_EQ(one->wait_for(3), (Calls{{requests[0], requests[2], requests[3]}}));
  EXPECT_EQ(other->wait_for(1), (Calls{{requests[1]}}));
  EXPECT_EQ(answers.count(), 0U);
}

TEST_F(BatchTest, ACancelledRequestGoesToItsReceiver) {
  make({4, hours(1), 0, {}});
  const auto receiver = std::make_shared<Together>();
  const auto request = request_of({1, 2});
  request->receiver = receiver;
  submit(request);
  EXPECT_TRUE(pool->cancel(request));
  EXPECT_EQ(receiver->wait_for(1).size(), 1U);
  EXPECT_EQ(request->outcome, Outcome::cancelled);
  EXPECT_EQ(request->receiver, nullptr);
}

TEST_F(BatchTest, SmallOutputsAreGivenAsRowsToRequestsThatTakeThemAndLargeOnesAreCopied) {
  for (const std::int64_t columns : {2, 2000}) {
    SCOPED_TRACE(columns);
    make({4, hours(1), 0, {}});
    answers.clear();
    for (const std::int64_t count : {1, 2, 1}) {
      const auto request = request_of({count, columns}, static_cast<float>(count));
      request->takes_rows = true;
      submit(request);
    }
    std::size_t first = 0;
    for (const auto& request : answers.wait_for(3)) {
      if (columns == 2000) {
        EXPECT_FALSE(request->rows.outputs);
        expect_doubled(*request);
        continue;
      }
      ASSERT_TRUE(request->rows.outputs);
      EXPECT_TRUE(request->outputs.empty());
      EXPECT_EQ(request->rows.first, first);
      const JointOutputs::Output& tensor = request->rows.outputs->tensors.at(0);
      EXPECT_EQ(tensor.shape, (Shape{4, 2}));
      EXPECT_EQ(tensor.row_bytes, 2 * sizeof(float));
      const auto* data = reinterpret_cast<const float*>(tensor.data + first * tensor.row_bytes);
      EXPECT_EQ(std::vector<float>(data, data + 2 * request->rows.count),
                doubled(numbers(request->inputs.values()[0])));
      first += request->rows.count;
    }
  }
}

TEST_F(BatchTest, KnownInputsAreJoinedAsOthersAre) {
  make({2, hours(1), 0, {}});
  const std::vector<float> memory{1, 2};
  const auto known = answers.request();
  known->output_names = {"y"};
  HostTensor description;
  description.type = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  description.rank = 2;
  description.shape = {1, 2};
  description.data = memory.data();
  known->inputs.add("x", description);
  EXPECT_EQ(batch_traits(*known, {}).key, batch_traits(*request_of({1, 2}), {}).key);
  submit(known);
  const auto other = submit({1, 2}, 5);
  answers.wait_for(2);
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{2}));
  EXPECT_EQ(numbers(known->outputs.at(0)), (std::vector<float>{2, 4}));
  expect_doubled(*other);
}

TEST_F(BatchTest, KeyTellsApartWhatCannotJoin) {
  const auto with = [](const char* name, const Shape& shape, const char* output) {
    auto request = std::make_shared<Request>();
    request->output_names = {output};
    request->inputs.add(name, tensor(shape));
    return request;
  };
  const std::string key = batch_traits(*with("x", {2, 3}, "y"), {}).key;
  EXPECT_FALSE(key.empty());
  EXPECT_EQ(key, batch_traits(*with("x", {5, 3}, "y"), {}).key);
  EXPECT_NE(key, batch_traits(*with("x", {2, 4}, "y"), {}).key);
  EXPECT_NE(key, batch_traits(*with("x", {2, 3, 1}, "y"), {}).key);
  EXPECT_NE(key, batch_traits(*with("z", {2, 3}, "y"), {}).key);
  EXPECT_NE(key, batch_traits(*with("x", {2, 3}, "z"), {}).key);
  EXPECT_TRUE(batch_traits(*with("x", {2}, "y"), {8, milliseconds(0), 1, {}}).key.empty());
  EXPECT_EQ(why_unlike(*with("x", {2}, "y"), *with("x", {2, 1}, "y")), "input 'x' has the shapes (2,) and (2, 1)");
  for (const auto& other : {with("z", {2, 3}, "y"), with("x", {2, 3}, "z")}) {
    EXPECT_EQ(why_unlike(*with("x", {2, 3}, "y"), *other), "they give other inputs, or ask for other outputs");
  }
}

}  // namespace
}  // namespace ortmulti::tests
