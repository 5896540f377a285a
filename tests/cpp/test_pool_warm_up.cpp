#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "core/base/timeline.hpp"
#include "core/pool/runners.hpp"
#include "failing_threads.hpp"
#include "fake_runner.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

class PoolWarmUp : public RealSessions {
 protected:
  void SetUp() override {
    RealSessions::SetUp();
    for (int i = 0; i < 3; ++i) {
      runners.push_back(std::make_shared<FakeRunner>(Device::cuda(i)));
    }
  }
  // Two requests of each runner.
  void run(int runs) {
    const auto make = [this] {
      return made.emplace_back(Requests{std::make_shared<Request>(), std::make_shared<Request>()});
    };
    warm_up({runners.begin(), runners.end()}, {make, runs, timeline});
  }
  std::vector<std::shared_ptr<FakeRunner>> runners;
  std::vector<Requests> made;
  std::shared_ptr<Timeline> timeline = std::make_shared<Timeline>();
};

TEST_F(PoolWarmUp, AllRunnersRunEveryRequestAtTheSameTime) {
  for (const auto& runner : runners) {
    runner->hold();
  }
  auto done = std::async(std::launch::async, [&] { run(2); });
  for (const auto& runner : runners) {
    runner->wait_for_runs(1);
  }
  for (const auto& runner : runners) {
    runner->release();
  }
  done.get();
  for (std::size_t i = 0; i < runners.size(); ++i) {
    Request* const first = made[i][0].get();
    Request* const second = made[i][1].get();
    EXPECT_EQ(runners[i]->runs(), (std::vector<Request*>{first, first, second, second}));
  }
  EXPECT_EQ(timeline->spans().size(), runners.size());
  EXPECT_EQ(timeline->spans().front().name, "warm up");
}

TEST_F(PoolWarmUp, TheFirstErrorIsThrownWhenAllHaveEnded) {
  for (int i = 1; i < 3; ++i) {
    runners[static_cast<std::size_t>(i)]->action = [i](Request& /*request*/) {
      throw Error(ErrorKind::fail, "runner " + std::to_string(i));
    };
  }
  EXPECT_TRUE(throws(ErrorKind::fail, {"runner 1"}, [&] { run(1); }));
  EXPECT_EQ(runners[0]->runs().size(), 2U);
  EXPECT_EQ(runners[2]->runs().size(), 1U);
}

TEST_F(PoolWarmUp, WithoutThreadsTheyRunOneAfterAnother) {
  {
    const NoThreads none;
    run(1);
  }
  for (const auto& runner : runners) {
    EXPECT_EQ(runner->runs().size(), 2U);
  }
}

}  // namespace
}  // namespace ortmulti::tests
