#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "core/policy/side_by_side.hpp"
#include "core/pool/cpu_runner.hpp"
#include "fake_runner.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

// A run of "add", of {0, 1, 2} and {1, 2, 3}, which says with which session it was.
struct AddRequest : Request {
  AddRequest() {
    inputs.add("x", tensor({1, 3}));
    output_names = {"sum"};
  }
  void prepare(const std::shared_ptr<Session>& session) override { ran_with = session; }
  std::shared_ptr<Session> ran_with;
};

class CpuSessionsTest : public RealSessions {
 protected:
  void SetUp() override {
    RealSessions::SetUp();
    if (!IsSkipped()) {
      all_cores = make_session("add");
      sessions = std::make_shared<CpuSessions>(
          all_cores, [this](const std::shared_ptr<CpuSessions>& wanting) { wanted.push_back(wanting.get()); });
    }
  }
  std::shared_ptr<Session> ran_with(bool side_by_side) const {
    AddRequest request;
    request.side_by_side = side_by_side;
    CpuRunner(sessions).run(request);
    EXPECT_EQ(numbers(request.outputs.at(0)), (std::vector<float>{1, 3, 5}));
    return request.ran_with;
  }

  std::shared_ptr<Session> all_cores;
  std::vector<const CpuSessions*> wanted;
  std::shared_ptr<CpuSessions> sessions;
};

TEST_F(CpuSessionsTest, TheSessionOfOneThreadIsAskedForAndAwaited) {
  EXPECT_EQ(sessions->why_no_more(), std::nullopt);
  EXPECT_EQ(sessions->why_no_more(), std::nullopt);
  EXPECT_EQ(wanted, std::vector<const CpuSessions*>{sessions.get()});
  sessions->add(make_session("add", with_threads(1)));
  EXPECT_EQ(sessions->why_no_more(), "");
  EXPECT_EQ(wanted.size(), 1U);
}

TEST_F(CpuSessionsTest, WithoutItThereIsTheReason) {
  sessions->why_no_more();
  sessions->not_made("no memory");
  EXPECT_EQ(CpuRunner(sessions).why_no_more(), "there is no session of one thread: no memory");
  EXPECT_EQ(ran_with(true), all_cores);
  EXPECT_EQ(wanted.size(), 1U);
  EXPECT_EQ(sessions->why_no_more(), std::nullopt) << "it is tried again";
  EXPECT_EQ(wanted.size(), 2U);
}

TEST_F(CpuSessionsTest, ItIsFreedWhereItGainsNothingAndMadeAgainWhenItIsWanted) {
  auto made = make_session("add", with_threads(1));
  const std::weak_ptr<Session> watched = made;
  sessions->add(std::move(made));
  EXPECT_TRUE(CpuRunner(sessions).drop_graphs());
  EXPECT_FALSE(CpuRunner(sessions).drop_graphs());
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(ran_with(true), all_cores);
  EXPECT_EQ(sessions->why_no_more(), std::nullopt);
  EXPECT_EQ(wanted.size(), 1U);
  CpuRunner(sessions).no_more_run();
  EXPECT_EQ(sessions->why_no_more(), std::nullopt) << "it is still being made";
}

TEST_F(CpuSessionsTest, RunsBesideOthersHaveOneThreadAndLoneOnesAllCores) {
  const auto one_thread = make_session("add", with_threads(1));
  EXPECT_EQ(ran_with(true), all_cores) << "it is not there yet";
  sessions->add(one_thread);
  EXPECT_EQ(ran_with(true), one_thread);
  EXPECT_EQ(ran_with(false), all_cores);
}

TEST_F(CpuSessionsTest, NobodyHasItAfterTheEnd) {
  auto early = make_session("add", with_threads(1));
  auto late = make_session("add", with_threads(1));
  const std::vector<std::weak_ptr<Session>> made{early, late};
  sessions->add(std::move(early));
  EXPECT_FALSE(sessions->ended());
  sessions->end();
  EXPECT_TRUE(sessions->ended());
  sessions->add(std::move(late));
  EXPECT_TRUE(made[0].expired());
  EXPECT_TRUE(made[1].expired());
}

class PoolOnCpu : public PoolWithFakes {};

TEST(SideBySide, AMomentWithoutOthersGivesNoRunAllCores) {
  SideBySide side_by_side;
  SideBySide::Time now{std::chrono::seconds(1000)};
  EXPECT_FALSE(side_by_side.choose(now, 1, 100, 2)) << "one run at a time has all cores";
  EXPECT_FALSE(side_by_side.choose(now, 2, 1, 2)) << "there never were more";
  EXPECT_TRUE(side_by_side.choose(now, 2, 2, 2));
  for (int round = 0; round < 100; ++round) {
    EXPECT_TRUE(side_by_side.choose(now, 2, 1, 2)) << "the other client sends its next request";
    EXPECT_TRUE(side_by_side.choose(now, 2, 2, 2));
  }
  for (std::size_t i = 1; i < *numbers::in_flight_few_in_a_row; ++i) {
    EXPECT_TRUE(side_by_side.choose(now, 2, 1, 2));
  }
  EXPECT_FALSE(side_by_side.choose(now, 2, 1, 2)) << "there is one client";
  EXPECT_FALSE(side_by_side.choose(now, 2, 1, 2));
  EXPECT_TRUE(side_by_side.choose(now, 2, 2, 2)) << "more are met at once";
  EXPECT_TRUE(side_by_side.choose(now, 2, 1, 2));
  now += *numbers::in_flight_few_for;
  EXPECT_FALSE(side_by_side.choose(now, 2, 1, 2)) << "runs of seconds: the other client has gone long since";
}

TEST_F(PoolOnCpu, AsManyRunsAsCoresAreTriedAtOnceAndKnowOfEachOther) {
  std::atomic<Pool::Clock::time_point> now{Pool::Clock::time_point(std::chrono::seconds(1000))};
  Pool::Options options;
  options.now = [&] { return now.load(); };
  options.cores = 8;
  pool = Pool::make(options);
  std::atomic<int> alone{0};
  std::atomic<int> beside{0};
  std::mutex mutex;
  std::string why;  // of the first choice; later ones begin with other numbers
  std::vector<std::shared_ptr<Runner>> runners;
  const int session = 0;
  std::shared_ptr<FakeRunner> first;
  for (int i = 0; i < 16; ++i) {
    const auto runner = std::make_shared<FakeRunner>(Device::cpu(), &session);
    first = first ? first : runner;
    runner->action = [&](Request& request) {
      ++(request.side_by_side ? beside : alone);
      const DeviceStats stats = pool->stats().devices[0];
      {
        const std::lock_guard lock(mutex);
        why = why.empty() ? stats.why_in_flight : why;
      }
      const auto under_way = static_cast<int>(stats.in_flight);
      for (auto before = now.load();
           !now.compare_exchange_weak(before, before + std::chrono::milliseconds(20) / under_way);) {
      }
    };
    runners.push_back(runner);
  }
  pool->add(runners, 1);
  EXPECT_EQ(pool->stats().devices[0].in_flight, 1U);
  first->hold();  // until all wait: runs take no time but on the clock
  for (int i = 0; i < 2000; ++i) {
    submit();
  }
  first->release();
  answers.wait_for(2000);
  pool->close(false);  // its threads look at this clock
  EXPECT_GE(pool->stats().devices[0].in_flight, 8U);
  EXPECT_NE(why.find("with 1, "), std::string::npos) << why;
  EXPECT_NE(why.find("with 8, "), std::string::npos) << why;
  EXPECT_EQ(why.find("with 2"), std::string::npos) << "fewer than the cores: " << why;
  EXPECT_GE(alone, 4) << "the first, one at a time";
  EXPECT_GE(beside, 1000);
}

}  // namespace
}  // namespace ortmulti::tests
