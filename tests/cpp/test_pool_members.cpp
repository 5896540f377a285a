#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <thread>

#include "fake_runner.hpp"

namespace ortmulti::tests {
namespace {

using std::chrono::hours;
using Outcome = Request::Outcome;

Pool::Clock::time_point far() { return Pool::Clock::now() + hours(1); }

class PoolMembers : public PoolWithFakes {
 protected:
  DeviceState state(std::size_t index) { return pool->stats().devices.at(index).state; }
  static std::exception_ptr error(const std::string& text) {
    return std::make_exception_ptr(Error(ErrorKind::out_of_memory, text));
  }
};

TEST_F(PoolMembers, RequestsWaitForASessionThatIsOnItsWay) {
  pool->expect(Device::cuda(0), 1);
  pool->expect(Device::cuda(1), 1);
  const auto any = submit();
  const auto second = submit(Device::cuda(1));
  Request here;
  EXPECT_FALSE(pool->run_here(here));
  EXPECT_EQ(state(0), DeviceState::starting);
  EXPECT_TRUE(throws(ErrorKind::invalid_argument, {"no session on cuda:2"}, [&] { submit(Device::cuda(2)); }));
  const auto runner = add(Device::cuda(0));
  EXPECT_EQ(answers.wait_for(1).front(), any);
  EXPECT_EQ(state(0), DeviceState::ready);
  EXPECT_EQ(state(1), DeviceState::starting);
  EXPECT_EQ(pool->stats().devices[1].waiting, 1U);
  add(Device::cuda(1));
  answers.wait_for(2);
  EXPECT_EQ(second->outcome, Outcome::done);
  EXPECT_EQ(second->ran_on, Device::cuda(1));
}

TEST_F(PoolMembers, WhileOpeningAnyDeviceMayCome) {
  pool->set_opening(true);
  const auto any = submit();
  const auto first = submit(Device::cuda(0));
  const auto ninth = submit(Device::cuda(9));
  EXPECT_TRUE(pool->stats().devices.empty());
  pool->expect(Device::cuda(0), 1);
  pool->set_opening(false);
  EXPECT_EQ(answers.wait_for(1).front(), ninth);
  EXPECT_EQ(kind_of(*ninth), ErrorKind::invalid_argument);
  EXPECT_EQ(pool->stats().devices.size(), 1U);
  add(Device::cuda(0));
  answers.wait_for(3);
  EXPECT_EQ(any->outcome, Outcome::done);
  EXPECT_EQ(first->outcome, Outcome::done);
}

TEST_F(PoolMembers, OfWhatDoesNotComeOnlyThoseFailWhoWaitForItAlone) {
  pool->expect(Device::cuda(0), 2);
  pool->expect(Device::cuda(1), 1);
  const auto any = submit();
  const auto first = submit(Device::cuda(0));
  pool->not_coming(Device::cuda(0), 1, error("too large"));
  EXPECT_EQ(state(0), DeviceState::starting);
  pool->not_coming(Device::cuda(0), 1, error("too large"));
  EXPECT_EQ(answers.wait_for(1).front(), first);
  EXPECT_EQ(kind_of(*first), ErrorKind::out_of_memory);
  EXPECT_EQ(state(0), DeviceState::failed);
  EXPECT_EQ(pool->stats().devices[0].broken, "too large");
  EXPECT_TRUE(throws(ErrorKind::device, {"cuda:0: too large"}, [&] { submit(Device::cuda(0)); }));
  pool->not_coming(Device::cuda(1), 1, error("absent"));
  answers.wait_for(2);
  EXPECT_EQ(text_of(*any), "absent");
  EXPECT_TRUE(throws(ErrorKind::device, {"too large", "absent"}, [&] { submit(); }));
  pool->expect(Device::cuda(0), 1);  // another attempt
  EXPECT_EQ(state(0), DeviceState::starting);
  const auto again = submit(Device::cuda(0));
  add(Device::cuda(0));
  answers.wait_for(3);
  EXPECT_EQ(again->outcome, Outcome::done);
}

TEST_F(PoolMembers, OneSessionOfADeviceIsEnough) {
  pool->expect(Device::cpu(), 2);
  add(Device::cpu());
  pool->not_coming(Device::cpu(), 1, error("no"));
  EXPECT_EQ(state(0), DeviceState::ready);
  submit();
  answers.wait_for(1);
}

TEST_F(PoolMembers, AFailedPoolFailsWhatWaitsAndWhatIsAskedLater) {
  pool = Pool::make({0, {}});
  pool->expect(Device::cuda(0), 1);
  const auto any = submit();
  const auto first = submit(Device::cuda(0));
  auto blocked = std::async(std::launch::async, [&] {
    return throws(ErrorKind::out_of_memory, {"no room"}, [&] { pool->submit(answers.request(), far()); });
  });
  pool->fail(error("no room"));
  EXPECT_TRUE(blocked.get());
  answers.wait_for(2);
  for (const auto& request : {any, first}) {
    EXPECT_EQ(request->outcome, Outcome::failed);
    EXPECT_EQ(text_of(*request), "no room");
  }
  EXPECT_TRUE(throws(ErrorKind::out_of_memory, {"no room"}, [&] { submit(); }));
  pool->close(false);
  EXPECT_TRUE(throws(ErrorKind::out_of_memory, {"no room"}, [&] { submit(); }));
}

TEST_F(PoolMembers, ClosingAnswersNobodyWhoWaitsForWhatHasNotCome) {
  pool->expect(Device::cuda(0), 1);
  pool->expect(Device::cuda(1), 1);
  const auto runner = add(Device::cuda(0));
  const auto any = wait_behind(runner);
  const auto second = submit(Device::cuda(1));
  auto closing = std::async(std::launch::async, [&] { pool->close(false); });
  EXPECT_EQ(answers.wait_for(1).front(), second);
  EXPECT_EQ(kind_of(*second), ErrorKind::closed);
  runner->release();
  closing.get();
  EXPECT_EQ(any->outcome, Outcome::done);
  EXPECT_EQ(state(1), DeviceState::failed);
  EXPECT_TRUE(throws(ErrorKind::closed, {"closed"}, [&] { add(Device::cuda(1)); }));
  EXPECT_TRUE(throws(ErrorKind::closed, {"closed"}, [&] { pool->expect(Device::cuda(2), 1); }));
}

TEST_F(PoolMembers, CancellingWhatWaitsEndsAnotherThreadsClose) {
  const auto runner = add(Device::cpu());
  const auto running = keep_busy(runner);
  const auto waiting = submit();
  auto closing = std::async(std::launch::async, [&] { pool->close(false); });
  while (!pool->closed()) {
    std::this_thread::yield();
  }
  auto cancelling = std::async(std::launch::async, [&] { pool->close(true); });
  EXPECT_EQ(answers.wait_for(1).front(), waiting);
  EXPECT_EQ(waiting->outcome, Outcome::cancelled);
  runner->release();
  closing.get();
  cancelling.get();
  EXPECT_EQ(running->outcome, Outcome::done);
}

TEST_F(PoolMembers, ARemovedDeviceIsDrainedAndFreed) {
  const std::size_t threads = thread_count();
  const auto first = add(Device::cuda(0));
  const auto second = add(Device::cuda(1));
  const auto running = keep_busy(first);
  const auto other = keep_busy(second);
  const auto waiting = submit(Device::cuda(0));
  const auto any = submit();
  EXPECT_FALSE(pool->remove(Device::cuda(0), Pool::Clock::now()));
  EXPECT_EQ(answers.wait_for(1).front(), waiting);
  EXPECT_EQ(kind_of(*waiting), ErrorKind::device);
  EXPECT_NE(text_of(*waiting).find("cuda:0 was removed"), std::string::npos);
  auto removing = std::async(std::launch::async, [&] { return pool->remove(Device::cuda(0), far()); });
  first->release();
  EXPECT_TRUE(removing.get());
  EXPECT_EQ(running->outcome, Outcome::done);
  EXPECT_EQ(any->outcome, Outcome::pending);  // it did not go where it could have gone
  EXPECT_EQ(first.use_count(), 1);
  EXPECT_EQ(thread_count(), threads + 1);
  EXPECT_EQ(state(0), DeviceState::removed);
  EXPECT_EQ(pool->stats().devices[0].done, 1U);
  EXPECT_EQ(pool->stats().devices[0].sessions, 0U);
  EXPECT_TRUE(throws(ErrorKind::device, {"removed"}, [&] { submit(Device::cuda(0)); }));
  EXPECT_TRUE(throws(ErrorKind::device, {"removed"}, [&] { add(Device::cuda(0)); }));
  second->release();
  answers.wait_for(4);
  EXPECT_EQ(any->ran_on, Device::cuda(1));
  EXPECT_EQ(other->outcome, Outcome::done);

  pool->expect(Device::cuda(0), 1);
  add(Device::cuda(0));
  EXPECT_EQ(submit(Device::cuda(0))->device, Device::cuda(0));
  answers.wait_for(5);
  EXPECT_EQ(pool->stats().devices[0].done, 2U);
  EXPECT_TRUE(
      throws(ErrorKind::invalid_argument, {"no session on cuda:7"}, [&] { pool->remove(Device::cuda(7), far()); }));
}

TEST_F(PoolMembers, ABatchThatWaitsForMoreIsRunWhenItsDeviceIsRemoved) {
  pool = Pool::make({{}, {8, hours(1), 0, {}}});
  add(Device::cuda(0));
  add(Device::cuda(1));
  const auto joinable = request(Device::cuda(0));
  joinable->inputs.add("x", tensor({2, 2}));
  submit(joinable);
  EXPECT_TRUE(pool->remove(Device::cuda(0), far()));
  answers.wait_for(1);
  EXPECT_EQ(joinable->outcome, Outcome::done);
}

TEST_F(PoolMembers, ContinuesAnothersCounts) {
  const auto old = pool;
  add(Device::cuda(0));
  add(Device::cuda(1));
  submit(Device::cuda(0));
  submit(Device::cuda(1));
  answers.wait_for(2);
  for (int i = 0; i < 3; ++i) {
    const auto next = Pool::make({});
    const std::uint64_t done = pool->stats().devices[0].done;
    next->continue_from(pool);
    EXPECT_EQ(pool->stats().devices[0].done, done);
    EXPECT_EQ(next->stats().devices[0].done, done);
    pool->close(false);
    pool = next;
    add(Device::cuda(0));
    submit();
    answers.wait_for(3 + static_cast<std::size_t>(i));
  }
  const PoolStats stats = pool->stats();
  EXPECT_EQ(stats.devices[0].done, 4U);
  EXPECT_EQ(stats.devices[0].total.count(), 4U);
  EXPECT_EQ(stats.devices[1].done, 1U);
  EXPECT_EQ(stats.devices[1].state, DeviceState::removed);
  EXPECT_EQ(old.use_count(), 1);  // numbers are kept, and no pools
}

TEST_F(PoolMembers, AForkedChildHasErrors) {
  pool->expect(Device::cpu(), 1);
  EXPECT_TRUE(in_forked_child([&] {
    return throws(ErrorKind::forked, {"forked"}, [&] { pool->expect(Device::cpu(), 1); }) &&
           throws(ErrorKind::forked, {"forked"}, [&] { pool->set_opening(true); }) &&
           throws(ErrorKind::forked, {"forked"}, [&] { pool->fail(error("no")); }) &&
           throws(ErrorKind::forked, {"forked"}, [&] { pool->remove(Device::cpu(), far()); }) &&
           throws(ErrorKind::forked, {"forked"}, [&] { pool->not_coming(Device::cpu(), 1, error("no")); });
  }));
}

}  // namespace
}  // namespace ortmulti::tests
