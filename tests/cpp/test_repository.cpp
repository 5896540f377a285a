// Pools of several models that share a budget of memory.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/repository/repository.hpp"
#include "core/weights/store.hpp"
#include "fake_runner.hpp"
#include "loading.hpp"
#include "reading_runner.hpp"

namespace ortmulti::tests {
namespace {

using Clock = std::chrono::steady_clock;
using Outcome = ortmulti::Request::Outcome;

// NOLINTBEGIN(bugprone-throwing-static-initialization,cert-err58-cpp): an empty name takes no memory
const Device one = Device::cuda(0);
const Device other = Device::cuda(1);
// NOLINTEND(bugprone-throwing-static-initialization,cert-err58-cpp)

Clock::time_point soon() { return Clock::now() + std::chrono::seconds(60); }

// A pool of one model with one runner.
struct Model {
  std::shared_ptr<Pool> pool = Pool::make({});
  std::shared_ptr<FakeRunner> runner;
  Repository::Handle resident;
  std::atomic<int> wakes{0};
  std::atomic<int> failures{0};  // of the next wakes
  std::atomic<int> refuses{0};   // of the next sleeps
};

class RepositoryTest : public RealSessions {
 protected:
  void TearDown() override {
    for (const auto& model : models) {
      if (model->runner) {
        model->runner->release();
      }
      model->pool->close(true);
    }
  }

  static std::shared_ptr<DeviceSleep> sleeper(Model& model) {
    auto sleep = std::make_shared<DeviceSleep>(SleepLevel::weights);
    sleep->sleep = [&model](Clock::time_point) {
      if (model.refuses > 0) {
        --model.refuses;
        throw Error(ErrorKind::weights, "its file was changed");
      }
      return true;
    };
    sleep->wake = [&model] {
      ++model.wakes;
      if (model.failures > 0) {
        --model.failures;
        throw Error(ErrorKind::out_of_memory, "the driver has too little");
      }
    };
    return sleep;
  }

  Model& make() { return *models.emplace_back(std::make_unique<Model>()); }
  static void start(Model& model) {
    model.runner = std::make_shared<FakeRunner>(one);
    model.pool->add({model.runner});
  }
  void join(Model& model, const std::string& name, std::uint64_t bytes, const Repository::Handle& room = nullptr,
            std::uint64_t uncounted = 0) {
    Repository::Resident resident;
    resident.uncounted = uncounted;
    resident.name = name;
    resident.device = one;
    resident.pool = model.pool;
    resident.sleeper = [&model](const Device&, SleepLevel, HostCopy) { return sleeper(model); };
    ResidencyPolicy::Model size;
    size.bytes = bytes;
    size.sleeps[SleepLevel::weights] = {};
    model.resident = repository->add(resident, size, room);
  }
  // A model that is asleep, of so many bytes.
  Model& add(const std::string& name, std::uint64_t bytes) {
    Model& model = make();
    start(model);
    join(model, name, bytes);
    EXPECT_TRUE(model.pool->sleep(one, sleeper(model), soon()));
    return model;
  }
  std::shared_ptr<ortmulti::Request> submit(Model& model) {
    auto request = answers.request();
    request->own_run_options.emplace();
    request->run_options = &*request->own_run_options;
    EXPECT_TRUE(model.pool->submit(request, std::nullopt));
    return request;
  }
  // With a run that goes on until its runner is released.
  void keep_busy(Model& model) {
    model.runner->hold();
    submit(model);
    model.runner->wait_for_runs(1);
  }
  Repository::ResidentStats stats_of(const std::string& name) const {
    for (const auto& resident : repository->residents()) {
      if (resident.name == name) {
        return resident;
      }
    }
    return {};
  }
  bool awake(const std::string& name) const { return stats_of(name).model.level == SleepLevel::awake; }
  void wait_for_wakes(std::size_t count) const {
    while (repository->devices().front().waking < count) {
      std::this_thread::yield();
    }
  }

  std::shared_ptr<Repository> repository =
      std::make_shared<Repository>(std::vector<std::pair<Device, std::uint64_t>>{{one, 100}});
  std::vector<std::unique_ptr<Model>> models;
  Answers answers;
};

TEST_F(RepositoryTest, ARequestWakesItsModelAndAnotherOneSleepsForIt) {
  Model& a = add("a", 60);
  Model& b = add("b", 60);
  for (int i = 0; i < 3; ++i) {
    submit(a);
    answers.wait_for(2 * i + 1);
    EXPECT_TRUE(awake("a"));
    EXPECT_FALSE(awake("b"));
    submit(b);
    answers.wait_for(2 * i + 2);
    EXPECT_TRUE(awake("b"));
    EXPECT_FALSE(awake("a"));
    EXPECT_EQ(repository->devices().front().used, 60);
  }
  EXPECT_EQ(stats_of("a").evicted, 3);
  EXPECT_EQ(a.wakes, 3);
  EXPECT_EQ(b.wakes, 3);
}

TEST_F(RepositoryTest, AModelIsNotPutToSleepUnderItsRun) {
  Model& a = add("a", 60);
  Model& b = add("b", 60);
  keep_busy(a);
  const auto waits = submit(b);
  wait_for_wakes(1);
  EXPECT_EQ(answers.count(), 0);
  a.runner->release();
  answers.wait_for(2);
  EXPECT_EQ(waits->outcome, Outcome::done);
  EXPECT_TRUE(awake("b"));
}

TEST_F(RepositoryTest, WakesGetMemoryInTheOrderOfTheirRequests) {
  Model& first = add("first", 100);
  Model& second = add("second", 100);
  Model& third = add("third", 10);  // there would never be room for the second if small ones went ahead
  keep_busy(first);
  submit(second);
  wait_for_wakes(1);
  submit(third);
  wait_for_wakes(2);
  second.runner->hold();
  first.runner->release();
  second.runner->wait_for_runs(1);
  EXPECT_EQ(third.wakes, 0);
  second.runner->release();
  answers.wait_for(3);
}

TEST_F(RepositoryTest, AWakeThatNobodyWaitsForAnyMoreMakesNoRoom) {
  Model& busy = add("busy", 59);
  Model& large = add("large", 60);
  Model& small = add("small", 41);  // there is room for it, but not to pass the large one
  keep_busy(busy);
  const auto cancelled = submit(large);
  wait_for_wakes(1);
  EXPECT_TRUE(large.pool->cancel(cancelled));
  submit(small);
  answers.wait_for(2);  // it is answered though the other one runs on
  EXPECT_TRUE(awake("small"));
  EXPECT_EQ(large.wakes, 0);
  // A later request wakes it.
  submit(large);
  wait_for_wakes(1);
  busy.runner->release();
  answers.wait_for(4);
  EXPECT_EQ(large.wakes, 1);
  // A wake that was asked for needs no request.
  busy.pool->wake(one);
  EXPECT_TRUE(busy.pool->wait_until_awake(one, soon()));
  EXPECT_TRUE(awake("busy"));
}

TEST_F(RepositoryTest, AWakeForWhichThereIsRoomPassesOneThatWaitsForTheRunsOfAnother) {
  Model& busy = add("busy", 60);
  Model& large = add("large", 60);
  Model& small = add("small", 40);
  Model& larger = add("larger", 41);  // with it the large one would find too little when the busy one sleeps
  keep_busy(busy);
  submit(large);
  wait_for_wakes(1);
  submit(larger);
  wait_for_wakes(2);
  submit(small);
  answers.wait_for(1);
  EXPECT_TRUE(awake("small"));
  EXPECT_EQ(large.wakes + larger.wakes, 0);
  busy.runner->release();
  answers.wait_for(4);
}

TEST_F(RepositoryTest, WhereTheDeviceHasLessThanTheBudgetOthersSleepAndTheWakeIsTriedAgain) {
  Model& a = add("a", 30);
  Model& b = add("b", 30);
  submit(a);
  answers.wait_for(1);
  b.failures = 1;
  submit(b);
  EXPECT_EQ(answers.wait_for(2).back()->outcome, Outcome::done);
  EXPECT_FALSE(awake("a"));
  EXPECT_EQ(b.wakes, 2);
  Model& c = add("c", 30);
  c.failures = 2;
  const auto failed = submit(c);
  answers.wait_for(3);
  EXPECT_EQ(kind_of(*failed), ErrorKind::out_of_memory);
  EXPECT_FALSE(awake("c"));
  EXPECT_EQ(repository->devices().front().used, 0) << "what was promised to it is free again";
  submit(c);
  EXPECT_EQ(answers.wait_for(4).back()->outcome, Outcome::done);
}

TEST_F(RepositoryTest, AModelThatFailedToSleepIsAskedAgainTwiceBeforeOthersFail) {
  Model& a = add("a", 60);
  Model& b = add("b", 60);
  submit(a);
  answers.wait_for(1);
  a.refuses = 2;
  submit(b);
  EXPECT_EQ(answers.wait_for(2).back()->outcome, Outcome::done) << text_of(*answers.wait_for(2).back());
  EXPECT_EQ(a.refuses, 0);
  submit(a);
  answers.wait_for(3);
  a.refuses = 3;
  const auto failed = submit(b);
  answers.wait_for(4);
  EXPECT_EQ(kind_of(*failed), ErrorKind::out_of_memory);
  EXPECT_TRUE(awake("a"));
  submit(a);
  EXPECT_EQ(answers.wait_for(5).back()->outcome, Outcome::done);
}

TEST_F(RepositoryTest, AModelThatIsRemovedWhileItWaitsForRoomFailsAlone) {
  Model& a = add("a", 100);
  Model& b = add("b", 100);
  keep_busy(a);
  const auto removed = submit(b);
  wait_for_wakes(1);
  repository->remove(b.resident);
  answers.wait_for(1);
  EXPECT_EQ(kind_of(*removed), ErrorKind::closed);
  a.runner->release();
  answers.wait_for(2);
  submit(a);
  EXPECT_EQ(answers.wait_for(3).back()->outcome, Outcome::done);
}

TEST_F(RepositoryTest, AClosedPoolMakesRoom) {
  Model& a = add("a", 100);
  Model& b = add("b", 100);
  submit(a);
  answers.wait_for(1);
  a.pool->close(false);
  submit(b);
  EXPECT_EQ(answers.wait_for(2).back()->outcome, Outcome::done);
  EXPECT_EQ(repository->residents().size(), 1);
}

TEST_F(RepositoryTest, ALoadHasItsRoomUntilTheModelTakesItOver) {
  Model& a = add("a", 60);
  submit(a);
  answers.wait_for(1);
  const auto reserved = repository->reserve("new", one, 60);
  repository->wait_for_room(reserved);
  EXPECT_FALSE(awake("a"));
  EXPECT_EQ(repository->devices().front().used, 60);
  EXPECT_EQ(repository->residents().size(), 1) << "a room is no model";
  submit(a);
  wait_for_wakes(1);  // a load cannot be put to sleep, but it ends
  Model& loaded = make();
  start(loaded);
  join(loaded, "new", 60, reserved);
  EXPECT_EQ(answers.wait_for(2).back()->outcome, Outcome::done);
  EXPECT_FALSE(awake("new"));
  EXPECT_TRUE(throws(ErrorKind::out_of_memory, {"the budget"}, [&] { repository->reserve("huge", one, 101); }));
  EXPECT_TRUE(
      throws(ErrorKind::invalid_argument, {"no budget for cuda:1"}, [&] { repository->reserve("x", other, 1); }));
}

TEST_F(RepositoryTest, ADeviceThatComesAfterItsModelWasAddedSleepsUnderTheRepository) {
  Model& model = make();
  join(model, "early", 60);
  start(model);
  EXPECT_TRUE(model.pool->sleep(one, sleeper(model), soon()));
  EXPECT_FALSE(awake("early"));
  EXPECT_EQ(repository->devices().front().used, 0);
}

TEST_F(RepositoryTest, StatisticsAddUpTheModelsOfOneName) {
  submit(add("a", 60));
  answers.wait_for(1);
  add("a", 30);
  ASSERT_EQ(repository->residents().size(), 1);
  EXPECT_EQ(stats_of("a").model.bytes, 90);
  EXPECT_EQ(stats_of("a").model.level, SleepLevel::weights) << "that of the later one";
}

TEST_F(RepositoryTest, MemoryOfRunsThatNoModelHasAnnouncedCounts) {
  Model& a = make();
  start(a);
  a.runner->arena_now = Session::Arena{10, 0, 0, nullptr};
  join(a, "a", 40);
  Model& b = add("b", 60);
  repository->measure(one);
  EXPECT_EQ(repository->devices().front().used, 40) << "its bytes have what the arena had";
  a.runner->arena_now = Session::Arena{5, 0, 0, nullptr};
  repository->measure(one);
  EXPECT_EQ(repository->devices().front().used, 40);
  a.runner->arena_now = Session::Arena{40, 0, 0, nullptr};
  repository->measure(one);
  EXPECT_EQ(repository->devices().front().used, 70);
  EXPECT_EQ(repository->devices().front().models, 40);
  submit(b);
  answers.wait_for(1);
  EXPECT_FALSE(awake("a")) << "40, 60 and 30 exceed the budget";
}

TEST_F(RepositoryTest, WhereASessionCannotTellWhatNobodyCountsAndGrewCounts) {
  std::atomic<std::int64_t> in_use{1000};
  std::atomic<bool> of_process{true};
  repository = std::make_shared<Repository>(
      std::vector<std::pair<Device, std::uint64_t>>{{one, 100}},
      [&](const Device&) { return std::optional(UncountedMemory{in_use.load(), of_process.load()}); });
  Model& a = make();
  start(a);
  join(a, "a", 40, nullptr, 10);
  in_use = 1010;
  repository->measure(one);
  EXPECT_EQ(repository->devices().front().used, 40) << "its bytes have these 10";
  in_use = 1035;
  repository->measure(one);
  EXPECT_EQ(repository->devices().front().used, 65);
  of_process = false;
  in_use = 60'000;  // of all processes
  repository->measure(one);
  EXPECT_EQ(repository->devices().front().used, 40) << "it cannot be compared";
  of_process = true;
  Model& b = make();
  start(b);
  b.runner->arena_now = Session::Arena{5, 0, 0, nullptr};
  join(b, "b", 10);
  b.runner->arena_now = Session::Arena{20, 0, 0, nullptr};
  in_use = 1015;
  repository->measure(one);
  EXPECT_EQ(repository->devices().front().used, 50 + 15 + 5) << "who tells is counted, and what came to nobody's";
}

TEST_F(RepositoryTest, ArenasAreGivenBackBeforeAWakeFails) {
  repository = std::make_shared<Repository>(std::vector<std::pair<Device, std::uint64_t>>{{one, 100}});
  Model& a = add("a", 40);
  Model& b = make();
  start(b);
  b.runner->arena_now = Session::Arena{0, 0, 0, nullptr};
  a.runner->arena_now = Session::Arena{0, 0, 0, nullptr};
  join(b, "b", 50);
  repository->pin(b.resident, true);
  b.runner->arena_now = Session::Arena{20, 0, 0, nullptr};
  b.runner->shrinking = [&b] { b.runner->arena_now = Session::Arena{5, 0, 0, nullptr}; };
  submit(a);
  answers.wait_for(1);
  EXPECT_TRUE(awake("a"));
  b.runner->arena_now = Session::Arena{20, 0, 0, nullptr};
  b.runner->shrinking = nullptr;
  EXPECT_TRUE(a.pool->sleep(one, sleeper(a), soon()));
  repository->measure(one);
  submit(a);
  answers.wait_for(2);
  EXPECT_FALSE(awake("a"));
}

TEST_F(RepositoryTest, GraphsGoBeforeAnyModelSleeps) {
  Model& a = make();
  start(a);
  a.runner->arena_now = Session::Arena{};
  join(a, "a", 40);
  Model& b = add("b", 60);
  a.runner->arena_now = Session::Arena{30, 0, 0, nullptr};  // of its graphs
  a.runner->dropping_graphs = [&] { return std::exchange(a.runner->arena_now, Session::Arena{})->held == 30; };
  submit(a);
  answers.wait_for(1);
  submit(b);
  answers.wait_for(2);
  EXPECT_TRUE(awake("a")) << "40 and 60 fit, without the 30 of graphs";
  submit(a);
  answers.wait_for(3);
  EXPECT_EQ(stats_of("a").evicted, 0);
}

// --- Placement over several devices ---

class Placement : public PoolWithFakes {
 protected:
  std::shared_ptr<DeviceSleep> crowded(std::int64_t bytes) {
    auto sleep = std::make_shared<DeviceSleep>(SleepLevel::weights);
    sleep->sleep = [](Clock::time_point) { return true; };
    sleep->wake = [] {};
    sleep->crowd = std::make_shared<std::atomic<std::int64_t>>(bytes);
    return sleep;
  }
};

TEST_F(Placement, ARequestWakesTheDeviceWithMostRoom) {
  add(one);
  add(other);
  ASSERT_TRUE(pool->sleep(one, crowded(-10), soon()));
  ASSERT_TRUE(pool->sleep(other, crowded(-20), soon()));
  submit();
  EXPECT_EQ(answers.wait_for(1).front()->ran_on, other);
  EXPECT_EQ(stats_of(one).level, SleepLevel::weights);
}

TEST_F(Placement, AnotherDeviceWakesWhileMoreRequestsWaitThanAWakeWouldAnswer) {
  const auto first = add(one);
  const auto second = add(other);
  // Both have woken once, so the pool knows how long that takes: next to nothing.
  ASSERT_TRUE(pool->sleep(one, crowded(0), soon()));
  ASSERT_TRUE(pool->sleep(other, crowded(0), soon()));
  submit(one);
  submit(other);
  answers.wait_for(2);
  ASSERT_TRUE(pool->sleep(other, crowded(0), soon()));
  first->hold();
  submit();
  first->wait_for_runs(2);
  while (stats_of(other).level == SleepLevel::weights) {  // sooner or later there are enough
    submit();
  }
  second->wait_for_runs(2);
  EXPECT_EQ(stats_of(other).level, SleepLevel::awake);
  first->release();
}

// --- Over the driver in host memory ---

class ManyModels : public Loading {
 protected:
  static constexpr std::size_t count = 20;

  void make_stores() {
    stores.clear();
    restart();
    for (std::size_t i = 0; i < count; ++i) {
      Request on_one;
      on_one.devices = {0};
      const auto store = std::const_pointer_cast<CudaWeightStore>(load(files[i]->plan(), on_one).front());
      EXPECT_TRUE(store->sleep(i % 2 == 0 ? HostCopy::pinned : HostCopy::none, Clock::now()));
      stores.push_back(store);
    }
    EXPECT_EQ(fake.allocated(0), 0);
  }
  std::uint64_t bytes(std::size_t model) const {
    constexpr std::uint64_t page = FakeCuda::granularity;
    return (stores[model]->plan().slab_bytes + page - 1) / page * page;
  }

  // Another budget, and new pools of models that sleep.
  void begin(std::mt19937& random) {
    end();
    make_stores();
    std::uint64_t largest = 0;
    std::uint64_t all = 0;
    for (std::size_t i = 0; i < count; ++i) {
      largest = std::max(largest, bytes(i));
      all += bytes(i);
    }
    budget = largest + random() % (all / 2);
    repository = std::make_shared<Repository>(std::vector<std::pair<Device, std::uint64_t>>{{one, budget}});
    for (std::size_t i = 0; i < count; ++i) {
      pools.push_back(Pool::make({}));
      runners.push_back(std::make_shared<ReadingRunner>(stores[i], *files[i], fake, budget));
      pools[i]->add({runners[i]});
      Repository::Resident resident;
      resident.name = std::to_string(i);
      resident.device = one;
      resident.pool = pools[i];
      resident.copy = i % 2 == 0 ? HostCopy::if_possible : HostCopy::none;
      resident.sleeper = [store = stores[i]](const Device&, SleepLevel, HostCopy copy) {
        return sleep_of(store, copy);
      };
      ResidencyPolicy::Model model;
      model.bytes = bytes(i);
      model.sleeps[SleepLevel::weights] = {};
      model.level = SleepLevel::weights;
      const auto handle = repository->add(resident, model, nullptr);
      ASSERT_TRUE(pools[i]->sleep(one, resident.sleeper(one, SleepLevel::weights, resident.copy), Clock::now()));
    }
  }
  void end() {
    for (const auto& pool : pools) {
      EXPECT_TRUE(pool->close(false));
    }
    pools.clear();
    runners.clear();
    repository.reset();
  }

  std::vector<std::unique_ptr<WeightFiles>> files;
  std::vector<std::shared_ptr<CudaWeightStore>> stores;
  std::uint64_t budget = 0;
  std::shared_ptr<Repository> repository;
  std::vector<std::shared_ptr<Pool>> pools;
  std::vector<std::shared_ptr<ReadingRunner>> runners;
};

TEST_F(ManyModels, KeepTheBudgetAndAnswerEveryRequestOnceAndInOrder) {
  const Rounds schedules(1000);
  constexpr int each_budget = 20;
  constexpr int clients = 3;
  constexpr int requests = 8;  // of each
  for (std::size_t i = 0; i < count; ++i) {
    files.push_back(std::make_unique<WeightFiles>(static_cast<unsigned>(i)));
    files.back()->add_even(2, 3000 * (1 + i % 5));
  }
  for (int number = 0; schedules.have(number); ++number) {
    SCOPED_TRACE(number);
    std::mt19937 random(static_cast<unsigned>(number));
    if (number % each_budget == 0) {
      begin(random);
    }
    std::vector<Answers> answers(clients);
    std::vector<std::map<std::size_t, std::vector<const ortmulti::Request*>>> submitted(clients);
    in_threads(clients, [&, seed = random()](int number_of_client) {
      const auto client = static_cast<std::size_t>(number_of_client);
      std::mt19937 of_client(static_cast<unsigned>(seed + client));
      for (int i = 0; i < requests; ++i) {
        // Few models get most requests.
        const std::size_t model = std::min<std::size_t>(of_client() % count, of_client() % count);
        const auto request = answers[client].request();
        submitted[client][model].push_back(request.get());
        pools[model]->submit(request, std::nullopt);
        for (auto pause = of_client() % 50; pause > 0; --pause) {
          std::this_thread::yield();
        }
      }
    });
    for (Answers& each : answers) {
      for (const auto& request : each.wait_for(requests)) {
        ASSERT_EQ(request->outcome, Outcome::done) << text_of(*request);
      }
      EXPECT_EQ(each.count(), requests);
    }
    EXPECT_LE(repository->devices().front().used, budget);
    for (std::size_t i = 0; i < count; ++i) {
      for (const auto& of_client : submitted) {
        const auto found = of_client.find(i);
        const auto mine = found == of_client.end() ? std::vector<const ortmulti::Request*>() : found->second;
        std::vector<const ortmulti::Request*> ran;
        std::copy_if(runners[i]->ran.begin(), runners[i]->ran.end(), std::back_inserter(ran),
                     [&](const auto* request) { return std::count(mine.begin(), mine.end(), request) != 0; });
        EXPECT_EQ(ran, mine);
      }
      runners[i]->ran.clear();
    }
  }
  end();
  stores.clear();
}

}  // namespace
}  // namespace ortmulti::tests
