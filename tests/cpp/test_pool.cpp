#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "fake_runner.hpp"
#include "test_support.hpp"

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
    runner->release();
  }
  answers.wait_for(3);
}

TEST_F(PoolTest, KeepsTheOrderOfWhatWaits) {
  const auto runner = add(Device::cpu());
  runner->hold();
  submit();
  runner->wait_for_runs(1);
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
  EXPECT_TRUE(throws(ErrorKind::invalid_argument, {"no session on cuda:2"}, [&] {
    const auto request = answers.request();
    request->device = Device::cuda(2);
    pool->submit(request, std::nullopt);
  }));
}

TEST_F(PoolTest, RunsInTheCallersThreadWhenASessionIsIdle) {
  const auto runner = add(Device::cpu());
  std::thread::id ran_in;
  runner->action = [&](Request&) { ran_in = std::this_thread::get_id(); };
  Request request;
  EXPECT_TRUE(pool->run_here(request));
  EXPECT_EQ(ran_in, std::this_thread::get_id());
  EXPECT_EQ(request.outcome, Outcome::done);

  runner->hold();
  const auto other = submit();
  runner->wait_for_runs(2);
  Request refused;
  EXPECT_FALSE(pool->run_here(refused));
  EXPECT_EQ(refused.outcome, Outcome::pending);
  runner->release();
  answers.wait_for(1);
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

TEST_F(PoolTest, AFailedRequestFailsAlone) {
  const auto runner = add(Device::cpu());
  std::atomic<int> calls{0};
  runner->action = [&](Request&) {
    if (calls++ == 1) {
      throw Error(ErrorKind::invalid_argument, "a bad request");
    }
  };
  const std::vector<std::shared_ptr<Request>> requests{submit(), submit(), submit()};
  answers.wait_for(3);
  EXPECT_EQ(requests[0]->outcome, Outcome::done);
  EXPECT_EQ(requests[1]->outcome, Outcome::failed);
  EXPECT_EQ(text_of(*requests[1]), "a bad request");
  EXPECT_TRUE(requests[1]->outputs.empty());
  EXPECT_EQ(requests[2]->outcome, Outcome::done);
  EXPECT_EQ(pool->stats().devices.front().failed, 1U);
}

TEST_F(PoolTest, AFullQueueRefusesOrWaits) {
  pool = Pool::make({2, {}});
  const auto runner = add(Device::cpu());
  runner->hold();
  submit();
  runner->wait_for_runs(1);
  const auto submit_until = [&](Pool::Clock::time_point until) { return pool->submit(answers.request(), until); };
  EXPECT_TRUE(submit_until(Pool::Clock::now()));
  EXPECT_TRUE(submit_until(Pool::Clock::now()));
  EXPECT_FALSE(submit_until(Pool::Clock::now()));
  EXPECT_FALSE(submit_until(Pool::Clock::now() + milliseconds(1)));
  EXPECT_EQ(pool->stats().waiting, 2U);
  submit();  // however many wait
  EXPECT_EQ(pool->stats().waiting, 3U);
  std::vector<std::future<bool>> blocked;
  blocked.reserve(5);
  for (int i = 0; i < 5; ++i) {
    blocked.push_back(std::async(std::launch::async, [&] { return submit_until(Pool::Clock::now() + hours(1)); }));
  }
  runner->release();
  for (auto& accepted : blocked) {
    EXPECT_TRUE(accepted.get());
  }
  answers.wait_for(9);
}

TEST_F(PoolTest, TheWaitForRoomIsPartOfTheLatency) {
  pool = Pool::make({0, {}});
  const auto runner = add(Device::cpu());
  runner->hold();
  submit();
  runner->wait_for_runs(1);
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
  runner->release();
  answers.wait_for(1);
}

TEST_F(PoolTest, CancelsWhatWaits) {
  const auto runner = add(Device::cpu());
  runner->hold();
  const auto running = submit();
  runner->wait_for_runs(1);
  const auto waiting = submit();
  EXPECT_TRUE(pool->cancel(waiting));
  EXPECT_EQ(answers.wait_for(1).front(), waiting);
  EXPECT_EQ(waiting->outcome, Outcome::cancelled);
  EXPECT_EQ(kind_of(*waiting), ErrorKind::cancelled);
  EXPECT_FALSE(pool->cancel(waiting));
  runner->release();
  answers.wait_for(2);
  EXPECT_EQ(runner->runs().size(), 1U);
  EXPECT_EQ(pool->stats().cancelled_waiting, 1U);
  EXPECT_EQ(answers.count(), 2U);
}

TEST_F(PoolTest, CancellingEndsTheRun) {
  const auto runner = add(Device::cpu());
  runner->hold();
  const auto request = submit();
  runner->wait_for_runs(1);
  EXPECT_TRUE(pool->cancel(request));
  answers.wait_for(1);  // though nobody released the run
  EXPECT_EQ(request->outcome, Outcome::cancelled);
  EXPECT_EQ(pool->stats().devices.front().cancelled, 1U);
}

TEST_F(PoolTest, ADeadlineEndsWhatWaitsAndWhatRuns) {
  const auto runner = add(Device::cpu());
  runner->hold();
  const auto running = answers.request();
  const auto waiting = answers.request();
  running->deadline = Pool::Clock::now() + milliseconds(60);
  waiting->deadline = *running->deadline - milliseconds(30);  // else it might begin in the place of the other
  for (const auto& request : {running, waiting}) {
    request->own_run_options.emplace();
    request->run_options = &*request->own_run_options;
    EXPECT_TRUE(pool->submit(request, std::nullopt));
  }
  answers.wait_for(2);
  for (const auto& request : {running, waiting}) {
    EXPECT_EQ(request->outcome, Outcome::failed);
    EXPECT_EQ(kind_of(*request), ErrorKind::deadline) << text_of(*request);
  }
  EXPECT_EQ(pool->stats().failed_waiting, 1U);
  EXPECT_EQ(runner->runs().size(), 1U);
  EXPECT_TRUE(throws(ErrorKind::deadline, {"could not begin within"}, [&] {
    const auto late = answers.request();
    late->deadline = Pool::Clock::now();
    pool->submit(late, std::nullopt);
  }));
}

TEST_F(PoolTest, ADeadlineThatIsMetEndsNothing) {
  const auto runner = add(Device::cpu());
  const auto request = answers.request();
  request->deadline = Pool::Clock::now() + hours(1);
  pool->submit(request, std::nullopt);
  answers.wait_for(1);
  EXPECT_EQ(request->outcome, Outcome::done);
}

TEST_F(PoolTest, ABrokenDeviceIsTakenOut) {
  const auto bad = add(Device::cuda(0));
  const auto also_bad = add(Device::cuda(0));
  const auto good = add(Device::cuda(1));
  for (const auto& runner : {bad, also_bad, good}) {
    runner->hold();
  }
  bad->action = [](Request&) { throw Error(ErrorKind::fail, "an illegal memory access"); };
  also_bad->action = bad->action;
  const std::vector<std::shared_ptr<Request>> running{submit(), submit(), submit()};
  for (const auto& runner : {bad, also_bad, good}) {
    runner->wait_for_runs(1);
  }
  const auto for_the_bad = submit(Device::cuda(0));
  const auto for_any = submit();
  bad->break_down("its context is gone");
  also_bad->break_down("its context is gone");
  bad->release();
  // The one whose run broke it fails, and so does what waited for that device alone.
  for (const auto& request : answers.wait_for(2)) {
    EXPECT_EQ(request->outcome, Outcome::failed);
    EXPECT_TRUE(request == for_the_bad || text_of(*request) == "an illegal memory access");
  }
  EXPECT_EQ(kind_of(*for_the_bad), ErrorKind::device);
  also_bad->release();  // whose request is not to blame, and runs elsewhere
  good->release();
  answers.wait_for(5);
  EXPECT_EQ(for_any->outcome, Outcome::done);
  const PoolStats stats = pool->stats();
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
  broken->action = [](Request&) { throw Error(ErrorKind::fail, "lost"); };
  broken->break_down("gone");
  submit(Device::cuda(0));
  answers.wait_for(1);
  EXPECT_EQ(pool->runners(), std::vector<std::shared_ptr<Runner>>{good});
}

TEST_F(PoolTest, WhenTheLastDeviceBreaksWhatWaitsFails) {
  const auto runner = add(Device::cuda(0));
  runner->hold();
  runner->action = [](Request&) { throw Error(ErrorKind::fail, "lost"); };
  submit();
  runner->wait_for_runs(1);
  const auto waiting = submit();
  runner->break_down("gone");
  runner->release();
  answers.wait_for(2);
  EXPECT_EQ(waiting->outcome, Outcome::failed);
  EXPECT_EQ(kind_of(*waiting), ErrorKind::device);
  EXPECT_TRUE(throws(ErrorKind::device, {"gone"}, [&] { submit(); }));
  Request here;
  EXPECT_TRUE(throws(ErrorKind::device, {"gone"}, [&] { pool->run_here(here); }));
}

TEST_F(PoolTest, CloseAnswersWhatWasAccepted) {
  const auto runner = add(Device::cpu());
  runner->hold();
  std::vector<std::shared_ptr<Request>> requests;
  requests.reserve(5);
  for (int i = 0; i < 5; ++i) {
    requests.push_back(submit());
  }
  auto closing = std::async(std::launch::async, [&] { pool->close(false); });
  while (!pool->closed()) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(throws(ErrorKind::closed, {"closed"}, [&] { submit(); }));
  runner->release();
  closing.get();
  EXPECT_EQ(answers.count(), 5U);
  for (const auto& request : requests) {
    EXPECT_EQ(request->outcome, Outcome::done);
  }
  pool->close(false);
  EXPECT_EQ(pool->stats().devices.front().done, 5U);
}

TEST_F(PoolTest, CloseCancelsWhatHasNotBegun) {
  const auto runner = add(Device::cpu());
  runner->hold();
  const auto running = submit();
  runner->wait_for_runs(1);
  const auto waiting = submit();
  auto closing = std::async(std::launch::async, [&] { pool->close(true); });
  EXPECT_EQ(answers.wait_for(1).front(), waiting);
  runner->release();
  closing.get();
  EXPECT_EQ(running->outcome, Outcome::done);
  EXPECT_EQ(waiting->outcome, Outcome::cancelled);
  EXPECT_EQ(runner.use_count(), 1);
}

TEST_F(PoolTest, ABlockedSubmitEndsWhenThePoolIsClosed) {
  pool = Pool::make({0, {}});
  const auto runner = add(Device::cpu());
  runner->hold();
  submit();
  auto blocked = std::async(std::launch::async, [&] {
    return throws(ErrorKind::closed, {"closed"},
                  [&] { pool->submit(answers.request(), Pool::Clock::now() + hours(1)); });
  });
  auto closing = std::async(std::launch::async, [&] { pool->close(true); });
  EXPECT_TRUE(blocked.get());
  runner->release();
  closing.get();
}

TEST_F(PoolTest, ASessionThatComesLaterTakesWhatWaits) {
  EXPECT_TRUE(throws(ErrorKind::device, {"no session left"}, [&] { submit(); }));
  const auto first = add(Device::cpu());
  first->hold();
  submit();
  const auto waiting = submit();
  add(Device::cuda(0));
  EXPECT_EQ(answers.wait_for(1).front(), waiting);
  first->release();
  answers.wait_for(2);
}

TEST_F(PoolTest, LeavesNoThread) {
  const std::size_t before = thread_count();
  for (int i = 0; i < 50; ++i) {
    pool = Pool::make({});
    add(Device::cpu());
    add(Device::cuda(0));
    const auto request = answers.request();
    request->deadline = Pool::Clock::now() + hours(1);
    pool->submit(request, std::nullopt);
  }
  pool.reset();
  EXPECT_TRUE(threads_become(before));
  EXPECT_EQ(answers.count(), 50U);
}

TEST_F(PoolTest, AForkedChildHasAnErrorAndNoHang) {
  const auto runner = add(Device::cpu());
  submit();
  answers.wait_for(1);
  EXPECT_TRUE(in_forked_child([&] {
    const bool refused = static_cast<bool>(throws(ErrorKind::forked, {"forked"}, [&] { submit(); }));
    pool->close(true);
    pool.reset();
    return refused;
  }));
}

TEST_F(PoolTest, ManyThreadsAskCancelAndAreAnsweredOnce) {
  pool = Pool::make({16, {}});
  for (int i = 0; i < 4; ++i) {
    add(Device::cuda(i / 2))->action = [n = std::make_shared<std::atomic<int>>(0)](Request&) {
      if (++*n % 7 == 0) {
        throw Error(ErrorKind::fail, "every seventh");
      }
    };
  }
  constexpr std::size_t threads = 8;
  constexpr std::size_t each = 400;
  std::atomic<std::size_t> refused{0};
  std::atomic<std::size_t> here{0};
  std::vector<std::thread> askers;
  askers.reserve(threads);
  for (std::size_t t = 0; t < threads; ++t) {
    askers.emplace_back([&, t] {
      for (std::size_t i = 0; i < each; ++i) {
        if (i % 5 == 0) {
          Request request;
          if (pool->run_here(request)) {
            ++here;
            continue;
          }
        }
        const auto request = answers.request();
        request->own_run_options.emplace();
        request->run_options = &*request->own_run_options;
        if (i % 3 == 0) {
          request->device = Device::cuda(static_cast<int>(t % 2));
        }
        if (i % 4 == 0) {
          request->deadline = Pool::Clock::now() + std::chrono::microseconds(200);
        }
        try {
          if (!pool->submit(request, Pool::Clock::now() + (i % 2 == 0 ? milliseconds(0) : milliseconds(50)))) {
            ++refused;
          } else if (i % 6 == 0) {
            pool->cancel(request);
          }
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::deadline);
          ++refused;
        }
      }
    });
  }
  for (auto& asker : askers) {
    asker.join();
  }
  pool->close(false);
  EXPECT_EQ(answers.count() + refused + here, threads * each);
  for (const auto& request : answers.wait_for(0)) {
    EXPECT_NE(request->outcome, Outcome::pending);
    EXPECT_EQ(request->error == nullptr, request->outcome == Outcome::done);
  }
}

}  // namespace
}  // namespace ortmulti::tests
