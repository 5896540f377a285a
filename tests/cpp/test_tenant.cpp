// What a model of a repository takes: reserved before its load, measured after it, and released.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/repository/footprint.hpp"
#include "core/repository/tenant.hpp"
#include "fake_runner.hpp"

namespace ortmulti::tests {
namespace {

using Clock = std::chrono::steady_clock;

// NOLINTBEGIN(bugprone-throwing-static-initialization,cert-err58-cpp): an empty name takes no memory
const Device cpu;
const Device one = Device::cuda(0);
const Device other = Device::cuda(1);
// NOLINTEND(bugprone-throwing-static-initialization,cert-err58-cpp)

constexpr std::uint64_t cudnn = 80'000'000;

TEST(FootprintTest, AModelIsExpectedToTakeItsFilesAndWhatAnotherOneKeeps) {
  EXPECT_EQ(Footprint(one, {100, false}, 30).expected(), 130);
  EXPECT_EQ(Footprint(one, {100, true}, 30).expected(), 130 + cudnn);
  EXPECT_EQ(Footprint(cpu, {100, true}, 0).expected(), 100);
}

TEST(FootprintTest, OnAGpuWhatIsCountedCountsAndWhatGrewBesideUnlessTheFilesAreLarger) {
  Footprint footprint(one, {100, false}, 7);
  footprint.loaded(1, 120, 30, std::nullopt);
  EXPECT_EQ(footprint.taken(), 150);
  footprint.loaded(1, 120, -20, std::nullopt);  // another process has given memory back meanwhile
  EXPECT_EQ(footprint.taken(), 120);
  footprint.loaded(1, 120, std::nullopt, std::nullopt);
  EXPECT_EQ(footprint.taken(), 127) << "as much as another one keeps";
  footprint.loaded(1, 50, 10, std::nullopt);
  EXPECT_EQ(footprint.taken(), 100);
}

TEST(FootprintTest, OnTheCpuArenasCountWhereTheyHaveMoreThanTheFiles) {
  Footprint footprint(cpu, {100, false}, 0);
  footprint.loaded(1, 0, std::nullopt, Session::Arena{500, 120, 150, nullptr});
  EXPECT_EQ(footprint.taken(), 150);
  footprint.loaded(1, 0, std::nullopt, Session::Arena{500, 10, 40, nullptr});
  EXPECT_EQ(footprint.taken(), 130) << "the weights lie outside of the arena";
  footprint.loaded(1, 0, std::nullopt, std::nullopt);
  EXPECT_EQ(footprint.taken(), 100);
}

TEST(FootprintTest, OnTheCpuOnlyClosedSessionsSleep) {
  const auto there = Footprint(cpu, {100, false}, 0).sleeps(2);
  ASSERT_EQ(there.size(), 1);
  EXPECT_EQ(there.at(SleepLevel::session).wake, 2);
  const auto here = Footprint(one, {100, false}, 0).sleeps(2);
  EXPECT_EQ(here.at(SleepLevel::weights).wake, 0);
  EXPECT_EQ(here.at(SleepLevel::session).wake, 2);
}

TEST(FootprintTest, WhatASleepKeepsIsAtMostTheModel) {
  Footprint footprint(one, {100, false}, 30);
  footprint.loaded(1, 120, 30, std::nullopt);
  EXPECT_EQ(footprint.kept(20), 50);
  EXPECT_EQ(footprint.kept(0), 30);
  EXPECT_EQ(footprint.kept(200), 150);
}

TEST(FootprintTest, WhatConvolutionsTakeLaterCountsOnceForEachSessionAwakeAndAsleep) {
  Footprint footprint(one, {100, true}, 30);
  footprint.loaded(2, 120, 30, std::nullopt);
  EXPECT_EQ(footprint.taken(), 150 + 2 * cudnn);
  EXPECT_EQ(footprint.kept(20), 50 + 2 * cudnn);
  EXPECT_EQ(footprint.shown(50 + 2 * cudnn), 50);
}

// A pool of one model, which takes and gives back a GPU's memory.
class TenantTest : public RealSessions {
 protected:
  struct Loaded {
    std::shared_ptr<Pool> pool = Pool::make({});
    std::vector<std::shared_ptr<FakeRunner>> runners;
    std::vector<HostCopy> asked;  // of each sleep
    std::vector<double> closed;   // seconds that runs may last
  };

  void TearDown() override {
    for (const auto& model : models) {
      for (const auto& runner : model->runners) {
        runner->release();
      }
      model->pool->close(true);
    }
  }

  // What `load` makes, on these devices.
  Loaded& load(std::int64_t bytes, const std::vector<Device>& devices = {one}) {
    Loaded& made = *models.emplace_back(std::make_unique<Loaded>());
    for (const Device& device : devices) {
      made.runners.push_back(std::make_shared<FakeRunner>(device));
      made.runners.back()->arena_now = Session::Arena{};  // it tells that its runs took nothing
      made.pool->add({made.runners.back()});
    }
    in_use += bytes;
    return made;
  }
  // `weights`: bytes that a sleep of them gives back; none: they cannot sleep.
  Repository::Resident entering(Loaded& model, std::optional<std::int64_t> weights) {
    Repository::Resident loaded;
    loaded.pool = model.pool;
    loaded.sleeper = [this, &model, weights](const Device&, SleepLevel level, HostCopy copy) {
      model.asked.push_back(copy);
      if (!weights) {
        throw Error(ErrorKind::not_implemented, "the weights cannot sleep");
      }
      if (copy == HostCopy::pinned && refuses_copies) {
        throw Error(ErrorKind::out_of_memory, "no more pinned memory");
      }
      auto sleep = std::make_shared<DeviceSleep>(level);
      const auto set = [&model](std::int64_t bytes) {
        for (const auto& runner : model.runners) {
          runner->weights_now = static_cast<std::uint64_t>(bytes);
        }
      };
      sleep->sleep = [set](Clock::time_point) {
        set(0);
        return true;
      };
      sleep->wake = [set, weights] { set(*weights); };
      return sleep;
    };
    for (const auto& runner : model.runners) {
      runner->weights_now = static_cast<std::uint64_t>(weights.value_or(0));
    }
    in_use -= weights.value_or(0);
    loaded.close = [this, &model](const Device& device, SleepLevel level, double timeout) {
      model.closed.push_back(timeout);
      if (closing) {
        closing();
      }
      const auto sleep = std::make_shared<DeviceSleep>(level);
      sleep->sleep = [](Clock::time_point) { return true; };
      sleep->wake = [] { throw Error(ErrorKind::fail, "nobody makes its sessions"); };
      EXPECT_TRUE(model.pool->sleep(device, sleep, Clock::now() + std::chrono::seconds(60)));
    };
    return loaded;
  }
  std::unique_ptr<Tenant> tenant(const std::string& name, std::uint64_t files,
                                 const std::vector<Device>& devices = {one}) const {
    return std::make_unique<Tenant>(repository, name, devices, ModelFiles{files, false});
  }
  // A model that was loaded and sleeps: `taken` bytes, of which a sleep of its weights gives some back.
  std::unique_ptr<Tenant> settled(const std::string& name, std::int64_t taken, std::int64_t weights) {
    auto made = tenant(name, static_cast<std::uint64_t>(taken));
    made->reserve();
    made->enter(entering(load(taken), weights), 0, false, false);
    return made;
  }
  Repository::ResidentStats stats_of(const std::string& name) const {
    for (const auto& resident : repository->residents()) {
      if (resident.name == name) {
        return resident;
      }
    }
    return {};
  }
  Repository::DeviceUse use(const Device& device = one) const {
    for (const auto& each : repository->devices()) {
      if (each.device == device) {
        return each;
      }
    }
    return {};
  }
  std::uint64_t used() const { return use().used; }
  void ask(const Loaded& model) {
    const auto request = answers.request();
    request->own_run_options.emplace();
    request->run_options = &*request->own_run_options;
    EXPECT_TRUE(model.pool->submit(request, std::nullopt));
  }

  std::atomic<std::int64_t> in_use{1000};  // that nobody counts
  std::atomic<bool> of_process{true};
  std::atomic<bool> refuses_copies{false};
  std::function<void()> closing;
  std::shared_ptr<Repository> repository = std::make_shared<Repository>(
      Repository::Budgets{{one, 200}, {other, 200}, {cpu, 200}},
      [this](const Device& device) {
        return device.is_cuda() ? std::optional(UncountedMemory{in_use.load(), of_process.load()}) : std::nullopt;
      },
      100);
  std::vector<std::unique_ptr<Loaded>> models;
  Answers answers;
};

TEST_F(TenantTest, ALoadReservesItsFilesThenCountsWhatItTookAndSleeps) {
  const auto made = tenant("m", 40);
  made->reserve();
  EXPECT_EQ(used(), 40);
  EXPECT_TRUE(repository->residents().empty());
  made->enter(entering(load(70), 50), 0, false, false);
  const auto stats = stats_of("m");
  EXPECT_EQ(stats.model.level, SleepLevel::weights);
  EXPECT_EQ(stats.model.bytes, 70);
  EXPECT_EQ(stats.model.bytes_at(SleepLevel::weights), 20);
  EXPECT_EQ(used(), 20);
  made->release();
  EXPECT_EQ(used(), 0);
}

TEST_F(TenantTest, TwoKindsOfMeasurementsAreNotCompared) {
  const auto made = tenant("m", 40);
  made->reserve();
  of_process = false;  // and others use 100
  made->enter(entering(load(170), 50), 0, false, false);
  EXPECT_EQ(stats_of("m").model.bytes, 50) << "what is counted";
}

TEST_F(TenantTest, TheNextLoadReservesWhatThisOneKeepsBesides) {
  const auto first = settled("first", 70, 50);
  const auto second = tenant("second", 40);
  second->reserve();
  EXPECT_EQ(used(), 20 + 40 + 20);
  const auto elsewhere = tenant("elsewhere", 40, {other});
  elsewhere->reserve();
  EXPECT_EQ(use(other).used, 40) << "that is known of the first device alone";
}

TEST_F(TenantTest, PinnedCopiesStayWithinTheHostsBudgetUntilTheirModelIsReleased) {
  const auto first = settled("first", 70, 60);
  EXPECT_TRUE(first->keeps_copy());
  EXPECT_EQ(models[0]->asked, std::vector{HostCopy::pinned});
  const auto second = settled("second", 60, 50);  // 60 and 60 exceed 100
  EXPECT_FALSE(second->keeps_copy());
  EXPECT_EQ(models[1]->asked, std::vector{HostCopy::none});
  first->release();
  const auto third = settled("third", 60, 50);
  EXPECT_TRUE(third->keeps_copy());
}

TEST_F(TenantTest, AModelOnTwoDevicesHasOneCopy) {
  const auto both = tenant("both", 40, {one, other});
  both->reserve();
  both->enter(entering(load(60, {one, other}), 60), 0, false, false);
  EXPECT_TRUE(repository->has_host_memory(40));
  EXPECT_FALSE(repository->has_host_memory(41));
}

TEST_F(TenantTest, WhereTheCopyIsRefusedTheModelSleepsWithoutOneFromThenOn) {
  refuses_copies = true;
  const auto made = settled("m", 70, 50);
  EXPECT_FALSE(made->keeps_copy());
  EXPECT_TRUE(repository->has_host_memory(100));
  EXPECT_EQ(stats_of("m").model.level, SleepLevel::weights);
  ask(*models[0]);
  answers.wait_for(1);
  const auto next = tenant("next", 180);
  next->reserve();  // for which it sleeps
  EXPECT_EQ(models[0]->asked, (std::vector{HostCopy::pinned, HostCopy::none, HostCopy::none}));
}

TEST_F(TenantTest, AModelWhoseWeightsCannotSleepHasItsSessionsClosed) {
  const auto made = tenant("m", 40);
  made->reserve();
  made->enter(entering(load(70), std::nullopt), 0, false, false);
  EXPECT_EQ(models[0]->closed.size(), 1);
  const auto stats = stats_of("m");
  EXPECT_EQ(stats.model.level, SleepLevel::session);
  EXPECT_EQ(stats.model.sleeps.count(SleepLevel::weights), 0);
  EXPECT_FALSE(made->keeps_copy());
}

TEST_F(TenantTest, OnTheCpuAModelStaysAwakeAfterItsLoad) {
  const auto made = tenant("m", 40, {cpu});
  made->reserve();
  Loaded& model = load(0, {cpu});
  model.runners[0]->arena_now = Session::Arena{500, 50, 70, nullptr};
  made->enter(entering(model, std::nullopt), 0, false, false);
  EXPECT_EQ(stats_of("m").model.level, SleepLevel::awake);
  EXPECT_EQ(stats_of("m").model.bytes, 70);
  EXPECT_TRUE(model.closed.empty());
}

TEST_F(TenantTest, OthersSleepWhereALoadTookMoreThanWasReserved) {
  const auto first = settled("first", 90, 90);
  ask(*models[0]);
  answers.wait_for(1);
  const auto second = tenant("second", 60);
  second->reserve();
  EXPECT_EQ(stats_of("first").model.level, SleepLevel::awake);
  second->enter(entering(load(120), 0), 0, false, false);
  EXPECT_EQ(stats_of("first").model.level, SleepLevel::weights);
  EXPECT_LE(used(), 200);
}

TEST_F(TenantTest, ReleaseEndsAReservationThatWaitsForRoom) {
  const auto busy = settled("busy", 150, 150);
  models[0]->runners[0]->hold();
  ask(*models[0]);
  models[0]->runners[0]->wait_for_runs(1);
  const auto waits = tenant("waits", 100);
  auto reserved = std::async(std::launch::async, [&] { waits->reserve(); });
  while (use().waking == 0) {
    std::this_thread::yield();
  }
  waits->release();
  EXPECT_TRUE(throws(ErrorKind::closed, {"'waits' was unloaded"}, [&] { reserved.get(); }));
  EXPECT_EQ(used(), 150) << "the model that runs has kept its memory";
  EXPECT_TRUE(throws(ErrorKind::closed, {"'waits' was unloaded"}, [&] { waits->reserve(); }));
  EXPECT_EQ(used(), 150) << "nothing is reserved after the release";
}

TEST_F(TenantTest, ReleaseAfterAFailureLeavesNothingReserved) {
  const auto made = tenant("m", 40, {one, other});
  made->reserve();
  Loaded& model = load(70, {one, other});
  Repository::Resident loaded = entering(model, 50);
  loaded.sleeper = [](const Device&, SleepLevel, HostCopy) -> std::shared_ptr<DeviceSleep> {
    throw Error(ErrorKind::device, "it broke");
  };
  EXPECT_TRUE(throws(ErrorKind::device, {"it broke"}, [&] { made->enter(loaded, 0, false, false); }));
  made->release();
  for (const auto& device : repository->devices()) {
    EXPECT_EQ(device.models, 0);
  }
}

TEST_F(TenantTest, APoolWithoutASessionOnADeviceIsRefused) {
  const auto made = tenant("m", 40, {one, other});
  made->reserve();
  EXPECT_TRUE(throws(ErrorKind::device, {"'m' has no session on cuda:1"},
                     [&] { made->enter(entering(load(70), 50), 0, false, false); }));
}

TEST_F(TenantTest, APinnedModelIsNotPutToSleepForALoad) {
  const auto pinned = settled("pinned", 150, 150);
  ask(*models[0]);
  answers.wait_for(1);
  pinned->pin(true);
  const auto next = tenant("next", 100);
  EXPECT_TRUE(throws(ErrorKind::out_of_memory, {"'next' needs", "pinned: 'pinned'"}, [&] { next->reserve(); }));
  next->release();
  pinned->pin(false);
  const auto later = tenant("later", 100);
  later->reserve();
  EXPECT_EQ(stats_of("pinned").model.level, SleepLevel::weights);
}

// Closing sessions takes a number of seconds, and a negative one is an error.
TEST_F(TenantTest, ACloseAfterTheTimeForRunsIsOverGetsNoNegativeTime) {
  std::vector<std::unique_ptr<Tenant>> awake;
  for (const char* name : {"a", "b"}) {
    awake.push_back(tenant(name, 100, {cpu}));
    awake.back()->reserve();
    awake.back()->enter(entering(load(0, {cpu}), std::nullopt), 0, false, false);
  }
  closing = [begin = Clock::now()] {
    while (Clock::now() < begin + std::chrono::milliseconds(1100)) {  // longer than runs may hold up a sleep at first
      std::this_thread::yield();
    }
  };
  const auto next = tenant("next", 200, {cpu});
  next->reserve();
  const std::vector seconds{models[0]->closed.at(0), models[1]->closed.at(0)};
  EXPECT_EQ(*std::ranges::min_element(seconds), 0) << "of the later one";
  EXPECT_GT(*std::ranges::max_element(seconds), 0);
}

TEST_F(TenantTest, GraphsAreMadeWhileAQuarterOfTheBudgetIsFree) {
  const auto quarter = tenant("quarter", 150);
  quarter->reserve();
  EXPECT_EQ(repository->why_no_more(one), "");
  const auto more = tenant("more", 1);
  more->reserve();
  EXPECT_EQ(repository->why_no_more(one), "less than a quarter of the repository's budget is free");
  EXPECT_EQ(repository->why_no_more(other), "");
}

}  // namespace
}  // namespace ortmulti::tests
