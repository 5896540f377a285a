// Everything that pools and a repository do, at once and at random; for the sanitizers, too.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/pool/pool.hpp"
#include "core/repository/repository.hpp"
#include "fake_runner.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Outcome = Request::Outcome;
using Random = std::mt19937;

int below(Random& random, int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random); }

// Whether a device has its memory.
using Awake = std::shared_ptr<std::atomic<bool>>;

// y = x + 1; fails, is slow, and breaks for good, all at random, and ends when it is asked to.
class RandomRunner : public Runner {
 public:
  RandomRunner(Device device, Random::result_type seed, bool breaks,
               Awake awake = std::make_shared<std::atomic<bool>>(true))
      : device_(std::move(device)), random_(seed), breaks_(breaks), awake_(std::move(awake)) {}

  const Device& device() const noexcept override { return device_; }

  void run(Request& request) override {
    EXPECT_TRUE(*awake_) << "it runs while it sleeps";
    const int chance = below(random_, 200);
    if (broken_ || (breaks_ && chance == 0)) {
      broken_ = true;
      throw Error(ErrorKind::fail, "broken");
    }
    if (chance < 14) {
      throw chance < 10 ? Error(ErrorKind::invalid_argument, "a bad request") : Error(ErrorKind::ep_fail, "bad luck");
    }
    // A run ends early where the options say so, as a session's does.
    const auto end = std::chrono::steady_clock::now() + microseconds(chance < 20 ? 2000 : chance);
    while (std::chrono::steady_clock::now() < end) {
      if (terminated_.load() == &request) {
        throw Error(ErrorKind::fail, "terminated");
      }
      std::this_thread::yield();
    }
    EXPECT_TRUE(*awake_) << "it was put to sleep while it ran";
    request.outputs.clear();
    const std::vector<float> x = numbers(request.inputs.values()[0]);
    const auto rows = static_cast<std::int64_t>(x.size()) + (chance == 199 ? 1 : 0);  // more of them cannot be split
    Ort::Value y = tensor({rows, 1});
    std::ranges::transform(x, y.GetTensorMutableData<float>(), [](float value) { return value + 1; });
    request.outputs.push_back(std::move(y));
  }

  void terminate(Request& request) noexcept override { terminated_.store(&request); }
  std::string why_broken() noexcept override { return broken_ ? "broken for good" : ""; }

 private:
  const Device device_;
  Random random_;
  const bool breaks_;
  bool broken_ = false;
  const Awake awake_;
  std::atomic<Request*> terminated_{nullptr};
};

// One time of `often` it cannot sleep or is still in use, cannot wake or is not wanted. `comes_back` adds runners to a
// device that freed its own.
std::shared_ptr<DeviceSleep> random_sleep(Random& random, const Awake& awake, int often,
                                          const std::function<void()>& comes_back) {
  auto made = std::make_shared<DeviceSleep>(comes_back ? SleepLevel::session : SleepLevel::weights);
  made->auto_wake = below(random, 5) != 0;
  // "session": its runners are free already, so it cannot fail.
  made->sleep = [awake, often, certain = comes_back != nullptr,
                 dice = Random(random())](Pool::Clock::time_point) mutable {
    const int chance = certain ? often : below(dice, often);
    if (chance == 0) {
      throw Error(ErrorKind::weights, "it cannot sleep");
    }
    *awake = *awake && chance == 1;
    return chance != 1;
  };
  made->wake = [awake, often, comes_back, dice = Random(random())]() mutable {
    const int chance = below(dice, often);
    if (chance < 2) {
      throw Error(ErrorKind::out_of_memory, "it cannot wake");
    }
    if (chance == 2) {
      throw DeviceSleep::Unwanted();
    }
    *awake = true;
    if (comes_back) {
      comes_back();
    }
  };
  return made;
}

// A request that counts how often it was concluded.
class Counted : public Request {
 public:
  std::shared_ptr<Pool> pool;
  std::atomic<int> concluded{0};
  float value = 0;
  bool accepted = false;
};

class Stress : public RealSessions, public testing::WithParamInterface<unsigned> {
 protected:
  std::shared_ptr<Counted> make_request(Random& random) const {
    auto request = std::make_shared<Counted>();
    request->value = static_cast<float>(below(random, 1000));
    request->output_names = {"y"};
    request->inputs.add("x", tensor({1 + below(random, 3), 1}, request->value));
    if (below(random, 4) != 0) {
      request->own_run_options.emplace();
      request->run_options = &*request->own_run_options;
    }
    if (below(random, 5) == 0) {
      request->device = Device::cuda(below(random, devices));
    }
    request->priority = below(random, 3) - 1;
    if (below(random, 4) == 0) {
      request->deadline = Pool::Clock::now() + microseconds(below(random, 3000));
    }
    request->receiver = std::make_shared<Calls>([](const auto& done) { ++static_cast<Counted&>(*done).concluded; });
    return request;
  }

  // Asks for `count` requests, of one of the pools each; those that it took, or ran here.
  std::vector<std::shared_ptr<Counted>> ask(unsigned seed, int count) {
    Random random(seed);
    std::vector<std::shared_ptr<Counted>> asked;
    for (int i = 0; i < count; ++i) {
      const std::shared_ptr<Pool> asks = choose(random);
      const auto request = make_request(random);
      request->pool = asks;
      asked.push_back(request);
      try {
        const int way = below(random, 10);
        if (way < 3 && asks->run_here(*request)) {
          request->accepted = true;
          ++request->concluded;  // run_here gives it to no receiver
          continue;
        }
        std::optional<Pool::Clock::time_point> until;
        if (way < 8) {
          until = Pool::Clock::now() + microseconds(below(random, 500));
        }
        request->accepted = asks->submit(request, until);
        if (!request->accepted) {
          static_cast<void>(asks->reject());
        } else if (below(random, 4) == 0) {
          const auto& one = asked[static_cast<std::size_t>(below(random, i + 1))];
          one->pool->cancel(one);
        }
      } catch (const Error& error) {
        const ErrorKind kind = error.kind();
        EXPECT_TRUE(kind == ErrorKind::closed || kind == ErrorKind::deadline || kind == ErrorKind::device)
            << error.what();
      }
    }
    return asked;
  }

  // Six threads that ask, beside `others`; what they asked for.
  std::vector<std::shared_ptr<Counted>> ask_beside(Random& random, const std::vector<std::function<void()>>& others) {
    std::vector<std::future<std::vector<std::shared_ptr<Counted>>>> askers;
    askers.reserve(6);
    for (int t = 0; t < 6; ++t) {
      askers.push_back(
          std::async(std::launch::async, [this, seed = static_cast<unsigned>(random())] { return ask(seed, 300); }));
    }
    std::vector<std::future<void>> beside;
    beside.reserve(others.size());
    for (const auto& other : others) {
      beside.push_back(std::async(std::launch::async, other));
    }
    std::vector<std::shared_ptr<Counted>> asked;
    for (auto& asker : askers) {
      for (auto& request : asker.get()) {
        asked.push_back(std::move(request));
      }
    }
    over = true;
    for (auto& each : beside) {
      each.get();
    }
    return asked;
  }

  // Closes the pool at any moment.
  std::function<void()> closer(Random& random) {
    return [this, after = milliseconds(below(random, 60)), cancel = below(random, 2) == 0] {
      std::this_thread::sleep_for(after);
      pool->close(cancel);
    };
  }

  // That each request which was accepted ended once; how many were.
  static std::size_t check(const std::vector<std::shared_ptr<Counted>>& asked) {
    std::size_t accepted = 0;
    for (const auto& request : asked) {
      EXPECT_EQ(request->concluded.load(), request->accepted ? 1 : 0);
      EXPECT_EQ(request.use_count(), 1) << "a pool still holds it";
      if (!request->accepted) {
        continue;
      }
      ++accepted;
      EXPECT_NE(request->outcome, Outcome::pending);
      EXPECT_EQ(request->error == nullptr, request->outcome == Outcome::done);
      EXPECT_EQ(request->outputs.empty(), request->outcome != Outcome::done);
      if (request->outcome == Outcome::done) {
        EXPECT_EQ(*request->outputs[0].GetTensorData<float>(), request->value + 1);
      }
    }
    return accepted;
  }

  // The requests that ended, by the closed pool's own account.
  std::uint64_t counted() const {
    const PoolStats stats = pool->stats();
    std::uint64_t ended = stats.cancelled_waiting + stats.failed_waiting;
    for (const DeviceStats& device : stats.devices) {
      ended += device.done + device.failed + device.cancelled;
      EXPECT_EQ(device.busy, 0U);
      EXPECT_EQ(device.waiting, 0U);
    }
    EXPECT_EQ(stats.waiting, 0U);
    return ended;
  }

  void make_pool(Random& random) {
    Pool::Options options;
    if (below(random, 2) == 0) {
      options.max_waiting = static_cast<std::size_t>(below(random, 20));
    }
    if (below(random, 2) == 0) {
      options.batching = {8, microseconds(below(random, 1000)), 0, {}};
    }
    pool = Pool::make(options);
  }

  std::shared_ptr<Pool> pool;
  std::function<std::shared_ptr<Pool>(Random&)> choose = [this](Random&) { return pool; };
  int devices = 2;
  std::atomic<bool> over{false};  // whether all has been asked
};

TEST_P(Stress, EveryRequestIsConcludedOnce) {
  Random random(GetParam());
  make_pool(random);
  for (int i = 0; i < 4; ++i) {
    pool->add({std::make_shared<RandomRunner>(Device::cuda(i / 2), random(), i == 3)});
  }
  const auto watcher = [this] {
    while (!over) {
      EXPECT_LE(pool->stats().devices.size(), 2U);
      std::this_thread::yield();
    }
  };
  const auto asked = ask_beside(random, {watcher, closer(random), closer(random)});
  const std::size_t accepted = check(asked);
  EXPECT_EQ(counted(), accepted);
}

TEST_P(Stress, DevicesSleepWakeGoAndComeBack) {
  Random random(GetParam());
  make_pool(random);
  std::array<Awake, 2> awake{std::make_shared<std::atomic<bool>>(true), std::make_shared<std::atomic<bool>>(true)};
  const auto add = [&](int index, Random& dice) {
    const Awake& is_awake = awake.at(static_cast<std::size_t>(index));
    for (int i = 0; i < 2; ++i) {
      pool->add({std::make_shared<RandomRunner>(Device::cuda(index), dice(), false, is_awake)});
    }
  };
  add(0, random);
  add(1, random);
  // One change at a time, as the Python package makes them.
  const auto changes = [&, dice = Random(random())]() mutable {
    while (!over) {
      const int index = below(dice, 2);
      const Device device = Device::cuda(index);
      const Awake& is_awake = awake.at(static_cast<std::size_t>(index));
      const int what = below(dice, 12);
      try {
        if (what < 6) {
          const std::function<void()> comes_back = [&add, index, again = Random(dice())]() mutable {
            add(index, again);
          };
          const auto sleeper = random_sleep(dice, is_awake, 20, what < 3 ? nullptr : comes_back);
          if (!pool->sleep(device, sleeper, Pool::Clock::now() + milliseconds(20))) {
            pool->stay_awake(device, sleeper);
          }
        } else if (what < 11) {
          pool->wake(device);
          static_cast<void>(pool->wait_until_awake(device, Pool::Clock::now() + milliseconds(5)));
        } else {
          while (!pool->remove(device, Pool::Clock::now() + milliseconds(50))) {
          }
          pool->expect(device, 3);
          *is_awake = true;
          add(index, dice);
          pool->not_coming(device, 1, std::make_exception_ptr(Error(ErrorKind::out_of_memory, "one did not fit")));
        }
      } catch (const Error&) {
        std::this_thread::yield();  // it could not sleep or wake, or the pool is closed
      }
      static_cast<void>(pool->stats());
    }
  };
  const auto asked = ask_beside(random, {changes, closer(random)});
  const std::size_t accepted = check(asked);
  EXPECT_EQ(counted(), accepted);
}

// Three of five models fit.
TEST_P(Stress, ModelsOfARepositorySleepAndAreReplaced) {
  struct Model {
    std::shared_ptr<Pool> pool = Pool::make({});
    Repository::Handle resident;
  };
  Random random(GetParam());
  devices = 1;
  const Device device = Device::cuda(0);
  const auto repository = std::make_shared<Repository>(std::vector<std::pair<Device, std::uint64_t>>{{device, 100}});
  const auto load = [&](Random& dice) {
    auto model = std::make_shared<Model>();
    const auto reserved = repository->reserve("m", device, 30);
    repository->wait_for_room(reserved);
    const Awake awake = std::make_shared<std::atomic<bool>>(true);
    for (int i = 0; i < 2; ++i) {
      model->pool->add({std::make_shared<RandomRunner>(device, dice(), false, awake)});
    }
    Repository::Resident resident;
    resident.name = "m";
    resident.device = device;
    resident.pool = model->pool;
    resident.sleeper = [awake, sleeps = Random(dice())](const Device&, SleepLevel, HostCopy) mutable {
      auto made = random_sleep(sleeps, awake, 200, nullptr);
      made->auto_wake = true;
      return made;
    };
    ResidencyPolicy::Model size;
    size.bytes = 30;
    size.sleeps[SleepLevel::weights].bytes = 2;
    model->resident = repository->add(resident, size, reserved);
    return model;
  };
  const auto unload = [&](const Model& model, bool cancel) {
    if (cancel) {
      repository->remove(model.resident);
    }
    model.pool->close(cancel);
    repository->remove(model.resident);
  };
  std::array<std::shared_ptr<Model>, 5> models;
  std::mutex mutex;
  for (auto& model : models) {
    model = load(random);
  }
  const auto any = [&](Random& dice) {
    const std::lock_guard lock(mutex);
    return models.at(static_cast<std::size_t>(below(dice, 5)));
  };
  choose = [&](Random& dice) { return any(dice)->pool; };
  const auto changes = [&, dice = Random(random())]() mutable {
    while (!over) {
      try {
        switch (below(dice, 4)) {
          case 0: {
            auto model = load(dice);
            {
              const std::lock_guard lock(mutex);
              model.swap(models.at(static_cast<std::size_t>(below(dice, 5))));
            }
            unload(*model, below(dice, 2) == 0);
            break;
          }
          case 1: {
            const auto model = any(dice);
            repository->pin(model->resident, true);
            repository->pin(model->resident, false);
            break;
          }
          case 2: {
            const auto model = any(dice);
            model->pool->wake(device);
            static_cast<void>(model->pool->wait_until_awake(device, Pool::Clock::now() + milliseconds(5)));
            break;
          }
          default:
            EXPECT_LE(repository->residents().size(), 7U);
        }
      } catch (const Error&) {
        std::this_thread::yield();  // it could not wake, or found no room
      }
    }
  };
  const auto asked = ask_beside(random, {changes});
  for (const auto& model : models) {
    unload(*model, below(random, 2) == 0);
  }
  check(asked);
  EXPECT_EQ(repository->devices().front().used, 0U);
  EXPECT_EQ(repository->devices().front().waking, 0U);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Stress, testing::Range(1U, 25U));

}  // namespace
}  // namespace ortmulti::tests
