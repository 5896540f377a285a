// Everything that a pool does, at once and at random; for the sanitizers, too.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/pool/pool.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Outcome = Request::Outcome;
using Random = std::mt19937;

int below(Random& random, int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random); }

Ort::Value tensor(std::int64_t size, float value) {
  const std::vector<std::int64_t> shape{size, 1};
  Ort::Value made = Ort::Value::CreateTensor<float>(Ort::AllocatorWithDefaultOptions(), shape.data(), shape.size());
  std::fill_n(made.GetTensorMutableData<float>(), size, value);
  return made;
}

// y = x + 1; fails, is slow, and breaks for good, all at random, and ends when it is asked to.
class RandomRunner : public Runner {
 public:
  RandomRunner(Device device, unsigned seed, bool breaks)
      : device_(std::move(device)), random_(seed), breaks_(breaks) {}

  const Device& device() const noexcept override { return device_; }

  void run(Request& request) override {
    const int chance = below(random_, 200);
    if (broken_ || (breaks_ && chance == 0)) {
      broken_ = true;
      throw Error(ErrorKind::fail, "broken");
    }
    if (chance < 10) {
      throw Error(ErrorKind::invalid_argument, "a bad request");
    }
    // A run ends early where the options say so, as a session's does.
    const auto end = std::chrono::steady_clock::now() + microseconds(chance < 20 ? 2000 : chance);
    while (std::chrono::steady_clock::now() < end) {
      if (terminated_.load() == &request) {
        throw Error(ErrorKind::fail, "terminated");
      }
      std::this_thread::yield();
    }
    request.outputs.clear();
    const Ort::Value& x = request.inputs.values()[0];
    const std::int64_t size = x.GetTensorTypeAndShapeInfo().GetShape()[0];
    Ort::Value y = tensor(chance == 199 ? size + 1 : size, 0);  // which, of several requests, cannot be split
    for (std::int64_t i = 0; i < size; ++i) {
      y.GetTensorMutableData<float>()[i] = x.GetTensorData<float>()[i] + 1;
    }
    request.outputs.push_back(std::move(y));
  }

  void terminate(Request& request) noexcept override { terminated_.store(&request); }
  std::string why_broken() noexcept override { return broken_ ? "broken for good" : ""; }

 private:
  const Device device_;
  Random random_;
  const bool breaks_;
  bool broken_ = false;
  std::atomic<Request*> terminated_{nullptr};
};

// A request that counts how often it was concluded.
class Counted : public Request {
 public:
  std::atomic<int> concluded{0};
  float value = 0;
  bool accepted = false;
};

class Stress : public RealSessions, public testing::WithParamInterface<unsigned> {
 protected:
  std::shared_ptr<Counted> make_request(Random& random) {
    auto request = std::make_shared<Counted>();
    request->value = static_cast<float>(below(random, 1000));
    request->output_names = {"y"};
    request->inputs.add("x", tensor(1 + below(random, 3), request->value));
    if (below(random, 4) != 0) {
      request->own_run_options.emplace();
      request->run_options = &*request->own_run_options;
    }
    if (below(random, 5) == 0) {
      request->device = Device::cuda(below(random, 2));
    }
    if (below(random, 4) == 0) {
      request->deadline = Pool::Clock::now() + microseconds(below(random, 3000));
    }
    request->finished = [](const std::shared_ptr<Request>& done) { ++static_cast<Counted&>(*done).concluded; };
    return request;
  }

  // Asks for `count` requests; those that the pool took, or ran here.
  std::vector<std::shared_ptr<Counted>> ask(unsigned seed, int count) {
    Random random(seed);
    std::vector<std::shared_ptr<Counted>> asked;
    for (int i = 0; i < count; ++i) {
      const auto request = make_request(random);
      asked.push_back(request);
      try {
        const int way = below(random, 10);
        if (way < 3 && pool->run_here(*request)) {
          request->accepted = true;
          ++request->concluded;  // run_here does not call `finished`
          continue;
        }
        std::optional<Pool::Clock::time_point> until;
        if (way < 8) {
          until = Pool::Clock::now() + microseconds(below(random, 500));
        }
        request->accepted = pool->submit(request, until);
        if (!request->accepted) {
          pool->count_rejected();
        } else if (below(random, 4) == 0) {
          pool->cancel(asked[static_cast<std::size_t>(below(random, i + 1))]);
        }
      } catch (const Error& error) {
        const ErrorKind kind = error.kind();
        EXPECT_TRUE(kind == ErrorKind::closed || kind == ErrorKind::deadline || kind == ErrorKind::device)
            << error.what();
      }
    }
    return asked;
  }

  std::shared_ptr<Pool> pool;
};

TEST_P(Stress, EveryRequestIsConcludedOnce) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Random random(GetParam());
  Pool::Options options;
  if (below(random, 2) == 0) {
    options.max_waiting = static_cast<std::size_t>(below(random, 20));
  }
  if (below(random, 2) == 0) {
    options.batching = {8, microseconds(below(random, 1000)), 0, {}};
  }
  pool = Pool::make(options);
  for (int i = 0; i < 4; ++i) {
    pool->add({std::make_shared<RandomRunner>(Device::cuda(i / 2), random(), i == 3)});
  }
  std::vector<std::future<std::vector<std::shared_ptr<Counted>>>> askers;
  askers.reserve(6);
  for (int t = 0; t < 6; ++t) {
    askers.push_back(
        std::async(std::launch::async, [this, seed = static_cast<unsigned>(random())] { return ask(seed, 300); }));
  }
  std::atomic<bool> over{false};
  auto watcher = std::async(std::launch::async, [&] {
    while (!over) {
      const PoolStats stats = pool->stats();
      EXPECT_LE(stats.devices.size(), 2U);
      std::this_thread::yield();
    }
  });
  std::vector<std::future<void>> closers;
  const auto when = Pool::Clock::now() + milliseconds(below(random, 60));
  closers.reserve(2);
  for (int i = 0; i < 2; ++i) {
    closers.push_back(std::async(std::launch::async, [&, cancel = below(random, 2) == 0] {
      std::this_thread::sleep_until(when);  // at any moment is the point
      pool->close(cancel);
    }));
  }
  std::vector<std::shared_ptr<Counted>> asked;
  for (auto& asker : askers) {
    for (auto& request : asker.get()) {
      asked.push_back(std::move(request));
    }
  }
  for (auto& closer : closers) {
    closer.get();
  }
  over = true;
  watcher.get();

  std::size_t accepted = 0;
  for (const auto& request : asked) {
    EXPECT_EQ(request->concluded.load(), request->accepted ? 1 : 0);
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
  const PoolStats stats = pool->stats();
  std::uint64_t counted = stats.cancelled_waiting + stats.failed_waiting;
  for (const DeviceStats& device : stats.devices) {
    counted += device.done + device.failed + device.cancelled;
    EXPECT_EQ(device.busy, 0U);
    EXPECT_EQ(device.waiting, 0U);
  }
  EXPECT_EQ(counted, accepted);
  EXPECT_EQ(stats.waiting, 0U);
  for (const auto& request : asked) {
    EXPECT_EQ(request.use_count(), 1) << "the pool still holds it";
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Stress, testing::Range(1U, 25U));

}  // namespace
}  // namespace ortmulti::tests
