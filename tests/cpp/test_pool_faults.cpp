// What a pool may not do to those who use it: lock them out, or leave them waiting.

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "fake_runner.hpp"

namespace ortmulti::tests {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

// A request that asks the pool for something when it is freed, as a Python object that it keeps may do.
class Asking : public Request {
 public:
  Asking(Pool& pool, std::promise<void>& freed) : pool_(pool), freed_(freed) {}
  ~Asking() override {
    static_cast<void>(pool_.stats());
    freed_.set_value();
  }
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;

 private:
  Pool& pool_;
  std::promise<void>& freed_;
};

class PoolFaults : public PoolWithFakes {
 protected:
  // A request of which only the pool has references.
  std::weak_ptr<Request> submit_asking(std::optional<Pool::Clock::time_point> deadline = {}) {
    const auto request = std::make_shared<Asking>(*pool, freed_);
    request->deadline = deadline;
    request->output_names = {"y"};
    request->inputs.add("x", tensor({1}));
    request->receiver = std::make_shared<Calls>([](const auto&) {});
    return submit(request);
  }
  void expect_freed() {
    const auto freed = freed_.get_future();
    ASSERT_EQ(freed.wait_for(std::chrono::seconds(30)), std::future_status::ready) << "the pool hangs";
  }

  // A pool without room, whose runner is busy, and whose device may break when it is released.
  std::shared_ptr<FakeRunner> add_busy(bool breaks = false) {
    pool = Pool::make({0, {}});
    auto runner = add(Device::cuda(0));
    if (breaks) {
      break_down(*runner);
    }
    keep_busy(runner);
    return runner;
  }
  // Waits for room; the kind of the error that ends the wait, if there is one.
  std::future<std::optional<ErrorKind>> wait_for_room(const Device& device = Device::cuda(0),
                                                      std::optional<Pool::Clock::time_point> deadline = {}) {
    return std::async(std::launch::async, [this, device, deadline]() -> std::optional<ErrorKind> {
      const auto made = request(device);
      made->deadline = deadline;
      try {
        EXPECT_TRUE(pool->submit(made, Pool::Clock::now() + hours(1)));
      } catch (const Error& error) {
        return error.kind();
      }
      return {};
    });
  }
  static std::optional<ErrorKind> end_of(std::future<std::optional<ErrorKind>>& blocked) {
    EXPECT_EQ(blocked.wait_for(std::chrono::seconds(30)), std::future_status::ready) << "nobody woke it";
    return blocked.get();
  }

 private:
  std::promise<void> freed_;
};

TEST_F(PoolFaults, AnAnsweredRequestIsFreedWithoutThePoolsLock) {
  const auto runner = add(Device::cpu());
  runner->hold();  // until only the pool has it
  submit_asking();
  runner->release();
  expect_freed();
}

TEST_F(PoolFaults, AnExpiredRequestIsFreedWithoutThePoolsLock) {
  const auto runner = add(Device::cpu());
  keep_busy(runner);
  submit_asking(Pool::Clock::now() + milliseconds(100));
  expect_freed();
}

TEST_F(PoolFaults, ACancelledRequestIsFreedWithoutThePoolsLock) {
  const auto runner = add(Device::cpu());
  keep_busy(runner);
  EXPECT_TRUE(pool->cancel(submit_asking().lock()));
  expect_freed();
}

TEST_F(PoolFaults, ARequestThatClosingCancelsIsFreedWithoutThePoolsLock) {
  const auto runner = add(Device::cpu());
  keep_busy(runner);
  submit_asking();
  auto closing = std::async(std::launch::async, [&] { pool->close(true); });
  expect_freed();
  runner->release();
  closing.get();
}

TEST_F(PoolFaults, ARequestWhoseDeviceBreaksIsFreedWithoutThePoolsLock) {
  const auto runner = add(Device::cuda(0));
  break_down(*runner);
  keep_busy(runner);
  submit_asking();
  runner->release();
  expect_freed();
}

// An error that asks the pool for something when it is freed, as one of Python's waits for the GIL.
struct AskingError : std::exception {
  explicit AskingError(Pool& pool) : asks(&pool, [](Pool* asked) { static_cast<void>(asked->stats()); }) {}
  std::shared_ptr<Pool> asks;
};

TEST_F(PoolFaults, AnErrorOfACancelledRequestIsFreedWithoutThePoolsLock) {
  std::promise<void> running;
  std::promise<void> cancelled;
  add(Device::cpu())->action = [&](Request&) {
    running.set_value();
    cancelled.get_future().wait();
    throw AskingError(*pool);
  };
  const auto request = submit_asking();
  running.get_future().wait();
  EXPECT_TRUE(pool->cancel(request.lock()));
  cancelled.set_value();
  expect_freed();
}

TEST_F(PoolFaults, AnErrorBeforeARetryIsFreedWithoutThePoolsLock) {
  const auto breaks = add(Device::cuda(0));
  const auto beside = add(Device::cuda(0));
  const auto other = add(Device::cuda(1));
  for (const auto& runner : {breaks, beside, other}) {
    runner->hold();
  }
  break_down(*breaks);
  break_down(*beside);
  beside->action = [&](Request&) { throw AskingError(*pool); };
  submit();
  submit();
  submit_asking();
  for (const auto& runner : {breaks, beside, other}) {
    runner->wait_for_runs(1);
  }
  breaks->release();
  answers.wait_for(1);
  beside->release();  // its request is to run on the other device
  other->release();
  expect_freed();
}

TEST_F(PoolFaults, WhoWaitsForRoomLearnsThatASessionIsIdle) {
  const auto runner = add_busy();
  auto blocked = wait_for_room();
  runner->release();
  EXPECT_EQ(end_of(blocked), std::nullopt);
}

TEST_F(PoolFaults, WhoWaitsForRoomLearnsThatTheLastDeviceBroke) {
  const auto runner = add_busy(true);
  auto blocked = wait_for_room();
  runner->release();
  EXPECT_EQ(end_of(blocked), ErrorKind::device);
}

TEST_F(PoolFaults, WhoWaitsForRoomLearnsThatThePoolIsClosed) {
  const auto runner = add_busy();
  auto blocked = wait_for_room();
  auto closing = std::async(std::launch::async, [&] { pool->close(true); });
  EXPECT_EQ(end_of(blocked), ErrorKind::closed);
  runner->release();
  closing.get();
}

TEST_F(PoolFaults, WhoWaitsForRoomWaitsNoLongerThanItsDeadline) {
  add_busy();
  const auto late = Pool::Clock::now() + milliseconds(5);
  auto blocked = wait_for_room(Device::cuda(0), late);
  EXPECT_EQ(end_of(blocked), ErrorKind::deadline);
  const auto refused = request();
  refused->deadline = late;
  EXPECT_TRUE(throws(ErrorKind::deadline, {"could not begin within"}, [&] { submit(refused); }));
}

TEST_F(PoolFaults, ManyMayWaitForRoomEachForItsDevice) {
  const std::vector<std::shared_ptr<FakeRunner>> runners{add_busy(), add(Device::cuda(1))};
  keep_busy(runners[1]);
  std::vector<std::future<std::optional<ErrorKind>>> blocked;
  blocked.reserve(8);
  for (int i = 0; i < 8; ++i) {
    blocked.push_back(wait_for_room(Device::cuda(i % 2)));
  }
  for (const auto& runner : runners) {
    runner->release();
  }
  for (auto& each : blocked) {
    EXPECT_EQ(end_of(each), std::nullopt);
  }
}

TEST_F(PoolFaults, ARunnerMayThrowWhatIsNoError) {
  add(Device::cpu())->action = [](Request&) { throw 3; };  // NOLINT(bugprone-std-exception-baseclass)
  const auto request = submit();
  answers.wait_for(1);
  EXPECT_EQ(request->outcome, Request::Outcome::failed);
  EXPECT_THROW(std::rethrow_exception(request->error), int);
}

}  // namespace
}  // namespace ortmulti::tests
