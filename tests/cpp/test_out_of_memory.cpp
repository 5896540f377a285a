// What an allocation that fails leaves behind: nothing. Each allocation fails in turn.

#include <gtest/gtest.h>
#include <onnxruntime_cxx_api.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/ort/thread_group.hpp"
#include "failing_allocations.hpp"
#include "fake_runner.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

// A pool of one session, whose state before a request is the same each time.
class SubmitWithoutMemory : public RealSessions {
 protected:
  struct Case {
    Answers answers;
    std::shared_ptr<FakeRunner> runner = std::make_shared<FakeRunner>(Device::cpu());
    std::shared_ptr<Pool> pool;
    Case() = default;
    ~Case() {
      runner->release();
      pool->close(true);
    }
    Case(const Case&) = delete;
    Case& operator=(const Case&) = delete;
  };

  std::shared_ptr<Request> request() {
    auto made = current->answers.request();
    made->output_names = {"y"};
    made->inputs.add("x", tensor({1, 3}));
    return made;
  }

  // However slowly it comes to that, there is time left when it is submitted.
  void submit_in_time(const std::shared_ptr<Request>& asked, milliseconds timeout) {
    for (bool late = true; late; timeout *= 2) {
      asked->deadline = Pool::Clock::now() + timeout;
      try {
        EXPECT_TRUE(current->pool->submit(asked, std::nullopt));
        late = false;
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::deadline) {
          throw;
        }
      }
    }
  }

  // A request whose submission fails as often as it allocates, before it is accepted. `before`: what the pool has been
  // given by then.
  void submit_at_last(const Batching& batching, const std::function<void()>& before, milliseconds timeout = hours(1)) {
    std::shared_ptr<Request> asked;
    PoolStats there;
    const auto prepare = [&] {
      asked.reset();
      current = std::make_unique<Case>();
      Pool::Options options;
      options.batching = batching;
      current->pool = Pool::make(options);
      current->pool->add({current->runner});
      before();
      there = current->pool->stats();
      asked = request();
    };
    const int failed = with_each_allocation_failing(
        prepare, [&] { submit_in_time(asked, timeout); },
        [&] {
          EXPECT_EQ(asked.use_count(), 1) << "the pool has what it refused";
          const PoolStats stats = current->pool->stats();
          EXPECT_EQ(stats.waiting, there.waiting);
          EXPECT_EQ(stats.devices.front().busy, there.devices.front().busy);
          asked.reset();
          const auto later = request();  // the deadlines are still kept, and nobody's is that of what was refused
          submit_in_time(later, timeout);
          if (timeout < hours(1)) {
            EXPECT_EQ(kind_of(*current->answers.wait_for(1).front()), ErrorKind::deadline);
          }
        });
    EXPECT_GT(failed, 2);  // the thread that keeps deadlines, the deadline, and the request's place
  }

  void submit_and_hold() {
    current->runner->hold();
    ASSERT_TRUE(current->pool->submit(request(), std::nullopt));
    current->runner->wait_for_runs(1);
  }

  std::unique_ptr<Case> current;
};

TEST_F(SubmitWithoutMemory, ToAnIdleSession) {
  submit_at_last({}, [] {});
  EXPECT_EQ(current->answers.wait_for(1).front()->outcome, Request::Outcome::done);
}

TEST_F(SubmitWithoutMemory, ToTheQueue) {
  submit_at_last({}, [&] { submit_and_hold(); });
  EXPECT_EQ(current->pool->stats().waiting, 1U);
  current->runner->release();
  for (const auto& answered : current->answers.wait_for(2)) {
    EXPECT_EQ(answered->outcome, Request::Outcome::done);
  }
}

TEST_F(SubmitWithoutMemory, ToABatchThatForms) {
  const auto answer = [](Request& joint) { joint.outputs.push_back(tensor(shape_of(joint.inputs.values()[0]))); };
  submit_at_last({3, hours(1), 0, {}}, [&] {
    current->runner->action = answer;
    ASSERT_TRUE(current->pool->submit(request(), std::nullopt));
  });
  EXPECT_EQ(current->answers.count(), 0U);
  ASSERT_TRUE(current->pool->submit(request(), std::nullopt));
  for (const auto& answered : current->answers.wait_for(3)) {
    EXPECT_EQ(answered->outcome, Request::Outcome::done);
  }
  EXPECT_EQ(current->runner->runs().size(), 1U);
}

// A timer of a request that is gone would end the process when its time comes.
TEST_F(SubmitWithoutMemory, LeavesNoDeadlineBehind) {
  submit_at_last({}, [&] { submit_and_hold(); }, milliseconds(5));
  EXPECT_EQ(kind_of(*current->answers.wait_for(1).front()), ErrorKind::deadline);
  current->runner->release();
  EXPECT_EQ(current->answers.wait_for(2).back()->outcome, Request::Outcome::done);
}

class AddWithoutMemory : public RealSessions {};

TEST_F(AddWithoutMemory, AddsAllRunnersOfASessionOrNone) {
  std::shared_ptr<Pool> pool;
  std::vector<std::shared_ptr<Runner>> runners;
  const auto prepare = [&] {
    if (pool) {
      pool->close(true);
    }
    pool = Pool::make({});
    runners.clear();
    for (int i = 0; i < 3; ++i) {
      runners.push_back(std::make_shared<FakeRunner>(Device::cpu()));
    }
  };
  const int failed = with_each_allocation_failing(
      prepare, [&] { pool->add(runners); },
      [&] {
        EXPECT_TRUE(pool->runners().empty());
        for (const auto& runner : runners) {
          EXPECT_EQ(runner.use_count(), 1) << "the pool has a runner that it refused";
        }
        pool->add(runners);  // later all goes well
        EXPECT_EQ(pool->stats().devices.front().sessions, 3U);
      });
  EXPECT_GT(failed, 6);  // a worker and a thread for each
  EXPECT_EQ(pool->stats().devices.front().busy, 0U);
  pool->close(true);
}

TEST(ThreadsWithoutMemory, NoneIsLeft) {
  std::shared_ptr<ThreadGroup> group;
  const int failed = with_each_allocation_failing([] {},
                                                  [&] {
                                                    ThreadSettings settings;
                                                    settings.name_prefix = "few";
                                                    group = ThreadGroup::start(settings, "x", {}, 3);
                                                  },
                                                  [] {});
  EXPECT_GT(failed, 3);
  ASSERT_NE(group, nullptr);
  EXPECT_EQ(group->counts().created, 0);
}

}  // namespace
}  // namespace ortmulti::tests
