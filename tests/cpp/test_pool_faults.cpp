// What a pool may not do to those who use it: lock them out, or leave them waiting.

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fake_runner.hpp"
#include "test_support.hpp"

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

class PoolFaults : public RealSessions {
 protected:
  void TearDown() override { pool->close(true); }  // while what its threads use is there
  std::shared_ptr<FakeRunner> add(const Device& device) {
    auto runner = std::make_shared<FakeRunner>(device);
    pool->add({runner});
    return runner;
  }
  std::shared_ptr<Request> submit() {
    auto request = answers.request();
    EXPECT_TRUE(pool->submit(request, std::nullopt));
    return request;
  }
  // A request of which only the pool has references.
  std::weak_ptr<Request> submit_asking(std::optional<Pool::Clock::time_point> deadline = {}) {
    const auto request = std::make_shared<Asking>(*pool, freed_);
    request->deadline = deadline;
    request->output_names = {"y"};
    const float one = 1;
    Ort::Value x = Ort::Value::CreateTensor<float>(Ort::AllocatorWithDefaultOptions(), shape_.data(), shape_.size());
    *x.GetTensorMutableData<float>() = one;
    request->inputs.add("x", std::move(x));
    request->finished = [](const std::shared_ptr<Request>&) {};
    EXPECT_TRUE(pool->submit(request, std::nullopt));
    return request;
  }
  void expect_freed() {
    const auto freed = freed_.get_future();
    ASSERT_EQ(freed.wait_for(std::chrono::seconds(30)), std::future_status::ready) << "the pool hangs";
  }

  Answers answers;
  std::shared_ptr<Pool> pool = Pool::make({});

 private:
  const std::vector<std::int64_t> shape_{1};
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
  runner->hold();
  submit();
  runner->wait_for_runs(1);
  submit_asking(Pool::Clock::now() + milliseconds(5));
  expect_freed();
  runner->release();
}

TEST_F(PoolFaults, ACancelledRequestIsFreedWithoutThePoolsLock) {
  const auto runner = add(Device::cpu());
  runner->hold();
  submit();
  runner->wait_for_runs(1);
  EXPECT_TRUE(pool->cancel(submit_asking().lock()));
  expect_freed();
  runner->release();
}

TEST_F(PoolFaults, ARequestThatClosingCancelsIsFreedWithoutThePoolsLock) {
  const auto runner = add(Device::cpu());
  runner->hold();
  submit();
  runner->wait_for_runs(1);
  submit_asking();
  auto closing = std::async(std::launch::async, [&] { pool->close(true); });
  expect_freed();
  runner->release();
  closing.get();
}

TEST_F(PoolFaults, ARequestWhoseDeviceBreaksIsFreedWithoutThePoolsLock) {
  const auto runner = add(Device::cuda(0));
  runner->hold();
  runner->action = [](Request&) { throw Error(ErrorKind::fail, "lost"); };
  submit();
  runner->wait_for_runs(1);
  submit_asking();
  runner->break_down("gone");
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
  breaks->action = [](Request&) { throw Error(ErrorKind::fail, "lost"); };
  beside->action = [&](Request&) { throw AskingError(*pool); };
  submit();
  submit();
  submit_asking();
  for (const auto& runner : {breaks, beside, other}) {
    runner->wait_for_runs(1);
    runner->break_down(runner == other ? "" : "gone");
  }
  breaks->release();
  answers.wait_for(1);
  beside->release();  // its request is to run on the other device
  other->release();
  expect_freed();
}

TEST_F(PoolFaults, WhoWaitsForRoomLearnsThatASessionIsIdle) {
  pool = Pool::make({0, {}});
  const auto runner = add(Device::cpu());
  runner->hold();
  submit();
  runner->wait_for_runs(1);
  auto blocked =
      std::async(std::launch::async, [&] { return pool->submit(answers.request(), Pool::Clock::now() + hours(1)); });
  runner->release();
  ASSERT_EQ(blocked.wait_for(std::chrono::seconds(30)), std::future_status::ready) << "nobody woke it";
  EXPECT_TRUE(blocked.get());
  answers.wait_for(2);
}

TEST_F(PoolFaults, WhoWaitsForRoomLearnsThatTheLastDeviceBroke) {
  pool = Pool::make({0, {}});
  const auto runner = add(Device::cuda(0));
  runner->hold();
  runner->action = [](Request&) { throw Error(ErrorKind::fail, "lost"); };
  submit();
  runner->wait_for_runs(1);
  auto blocked = std::async(std::launch::async, [&] {
    return throws(ErrorKind::device, {"gone"}, [&] { pool->submit(answers.request(), Pool::Clock::now() + hours(1)); });
  });
  runner->break_down("gone");
  runner->release();
  ASSERT_EQ(blocked.wait_for(std::chrono::seconds(30)), std::future_status::ready) << "nobody woke it";
  EXPECT_TRUE(blocked.get());
}

TEST_F(PoolFaults, WhoWaitsForRoomWaitsNoLongerThanItsDeadline) {
  pool = Pool::make({0, {}});
  const auto runner = add(Device::cpu());
  runner->hold();
  submit();
  auto blocked = std::async(std::launch::async, [&] {
    return throws(ErrorKind::deadline, {"could not begin within"}, [&] {
      const auto request = answers.request();
      request->deadline = Pool::Clock::now() + milliseconds(5);
      pool->submit(request, Pool::Clock::now() + hours(1));
    });
  });
  ASSERT_EQ(blocked.wait_for(std::chrono::seconds(30)), std::future_status::ready) << "nobody woke it";
  EXPECT_TRUE(blocked.get());
  runner->release();
}

TEST_F(PoolFaults, ManyMayWaitForRoomEachForItsDevice) {
  pool = Pool::make({0, {}});
  const std::vector<std::shared_ptr<FakeRunner>> runners{add(Device::cuda(0)), add(Device::cuda(1))};
  for (const auto& runner : runners) {
    runner->hold();
  }
  submit();
  submit();
  std::vector<std::future<bool>> blocked;
  blocked.reserve(8);
  for (int i = 0; i < 8; ++i) {
    blocked.push_back(std::async(std::launch::async, [&, i] {
      const auto request = answers.request();
      request->device = Device::cuda(i % 2);
      return pool->submit(request, Pool::Clock::now() + hours(1));
    }));
  }
  for (const auto& runner : runners) {
    runner->wait_for_runs(1);
    runner->release();
  }
  for (auto& each : blocked) {
    ASSERT_EQ(each.wait_for(std::chrono::seconds(30)), std::future_status::ready) << "nobody woke it";
    EXPECT_TRUE(each.get());
  }
  answers.wait_for(10);
}

TEST_F(PoolFaults, ARunnerMayThrowWhatIsNoError) {
  add(Device::cpu())->action = [](Request&) { throw 3; };  // NOLINT(bugprone-std-exception-baseclass)
  const auto request = submit();
  answers.wait_for(1);
  EXPECT_EQ(request->outcome, Request::Outcome::failed);
  EXPECT_THROW(std::rethrow_exception(request->error), int);
}

TEST_F(PoolFaults, ManyMayCloseAtOnce) {
  for (int round = 0; round < 50; ++round) {
    pool = Pool::make({});
    add(Device::cuda(0));
    add(Device::cuda(1));
    for (int i = 0; i < 20; ++i) {
      submit();
    }
    std::vector<std::future<void>> closing;
    closing.reserve(4);
    for (int i = 0; i < 4; ++i) {
      closing.push_back(std::async(std::launch::async, [&, i] { pool->close(i % 2 == 0); }));
    }
    for (auto& each : closing) {
      each.get();
    }
    EXPECT_EQ(answers.count(), 20U * (static_cast<std::size_t>(round) + 1));
  }
}

}  // namespace
}  // namespace ortmulti::tests
