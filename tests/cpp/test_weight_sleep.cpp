// Weights that give their memory back and have it again, over the driver in host memory.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/pool/pool.hpp"
#include "core/weights/store.hpp"
#include "fake_runner.hpp"
#include "loading.hpp"
#include "reading_runner.hpp"

namespace ortmulti::tests {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = FakeCuda::Copy::Kind;
using Store = std::shared_ptr<CudaWeightStore>;

class SleepingWeights : public Loading {
 protected:
  void SetUp() override { files.add_random(2, 20); }

  std::vector<Store> load_on(const std::vector<int>& devices) {
    Request request;
    request.devices = devices;
    std::vector<Store> stores;
    for (const auto& store : load(files.plan(), request)) {
      stores.push_back(std::const_pointer_cast<CudaWeightStore>(store));
    }
    return stores;
  }
  testing::AssertionResult right_on(const Store& store) { return right(files, {store}); }
  static bool sleep(const Store& store, bool pinned = false) {
    return store->sleep(pinned ? HostCopy::pinned : HostCopy::none, Clock::now());
  }
  // Copies from now on, by kind.
  void count_copies() {
    fake.on_copy = [this](const FakeCuda::Copy& copy) {
      const std::lock_guard lock(mutex);
      copied[copy.kind] += copy.bytes;
      return CUDA_SUCCESS;
    };
  }

  WeightFiles files;
  std::mutex mutex;
  std::map<Kind, std::uint64_t> copied;
};

TEST_F(SleepingWeights, AreReadAgainToTheSameAddress) {
  const Store store = load_on({1}).front();
  const CUdeviceptr address = store->slab();
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(sleep(store));
    EXPECT_EQ(fake.allocated(1), 0);
    EXPECT_EQ(store->sleeps(), i + 1);
    EXPECT_TRUE(throws(ErrorKind::device, {"asleep on cuda:1", "Pool.wake"}, [&] { store->hold(); }));
    store->wake(nullptr);
    EXPECT_EQ(store->slab(), address);
    EXPECT_TRUE(right_on(store));
    EXPECT_TRUE(store->hold().owns_lock());
  }
}

TEST_F(SleepingWeights, AreReadAgainFromFilesThatWereMovedWhileTheyWereHeld) {
  files.list.hold_files();
  const Store store = load_on({0}).front();
  files.list.held.clear();  // the store's own are left
  EXPECT_TRUE(sleep(store));
  for (std::size_t file = 0; file < files.list.sources.size(); ++file) {
    std::filesystem::rename(files.path(file), files.path(file) + ".moved");
  }
  store->wake(nullptr);
  EXPECT_TRUE(right_on(store));
}

TEST_F(SleepingWeights, AreReadAgainFromFilesWithOtherRightsAndNotFromOthersWithTheOldTime) {
  const Store store = load_on({0}).front();
  EXPECT_TRUE(sleep(store));
  const std::string& file = files.path(1);
  chmod(file.c_str(), 0600);
  store->wake(nullptr);
  EXPECT_TRUE(right_on(store));
  EXPECT_TRUE(sleep(store));
  const std::string content = read_file(file);
  write_anew(file, std::string(content.size(), 'z'));
  EXPECT_TRUE(
      throws(ErrorKind::weights, {file.c_str(), "was written anew", "load again"}, [&] { store->wake(nullptr); }));
  EXPECT_EQ(fake.allocated(0), 0);
  write_anew(file, content);
  store->wake(nullptr);
  EXPECT_TRUE(right_on(store));
}

TEST_F(SleepingWeights, AreReadAgainThroughBuffersThatStayPinned) {
  const std::vector<Store> stores = load_on({0, 1});
  const auto pinned = [&] {
    const std::lock_guard lock(fake.mutex);
    return fake.calls["cuMemHostRegister"];
  };
  int after_first = 0;
  for (int i = 0; i < 3; ++i) {
    for (const Store& store : stores) {
      EXPECT_TRUE(sleep(store));
    }
    for (const Store& store : stores) {  // the second from the first, unless it is read
      store->wake(nullptr);
      EXPECT_TRUE(right_on(store));
    }
    after_first = i == 0 ? pinned() : after_first;
  }
  EXPECT_EQ(pinned(), after_first);
  EXPECT_EQ(fake.pageable_copies, 0);
}

TEST_F(SleepingWeights, ComeFromAPinnedCopyThatAllDevicesShare) {
  fake.peers = false;
  const std::vector<Store> stores = load_on({0, 1});
  EXPECT_TRUE(sleep(stores[0], true));
  count_copies();
  EXPECT_TRUE(sleep(stores[1], true));
  EXPECT_EQ(copied[Kind::to_host], 0) << "a second copy";
  for (const auto& file : files.list.sources) {
    std::filesystem::remove(file->name());
  }
  for (const Store& store : stores) {
    store->wake(nullptr);
    EXPECT_TRUE(right_on(store));
  }
  EXPECT_EQ(copied[Kind::to_device], 2 * stores[0]->plan().slab_bytes);
  EXPECT_EQ(fake.pageable_copies, 0);
  EXPECT_TRUE(sleep(stores[0]));  // the copy stays
  stores[0]->wake(nullptr);
  EXPECT_TRUE(right_on(stores[0]));
}

TEST_F(SleepingWeights, ComeFromAnotherDeviceThatIsAwake) {
  const std::vector<Store> stores = load_on({0, 1});
  EXPECT_TRUE(sleep(stores[0], true));
  count_copies();
  stores[0]->wake(nullptr);
  EXPECT_TRUE(right_on(stores[0]));
  EXPECT_EQ(copied[Kind::peer], stores[0]->plan().slab_bytes);
  EXPECT_EQ(copied[Kind::to_device], 0);
  EXPECT_TRUE(sleep(stores[0]));
  EXPECT_TRUE(sleep(stores[1]));
  stores[1]->wake(nullptr);  // not from one that sleeps
  EXPECT_TRUE(right_on(stores[1]));
  EXPECT_EQ(copied[Kind::to_device], stores[0]->plan().slab_bytes);
}

TEST_F(SleepingWeights, AreNotTakenFromADeviceThatIsStillBeingFilled) {
  Request request;
  request.devices = {0};
  const auto plan = files.plan();
  const auto first = std::const_pointer_cast<CudaWeightStore>(load(plan, request).front());
  const auto empty = std::make_shared<CudaWeightStore>(*startup, 1, plan, nullptr);
  EXPECT_TRUE(sleep(first));
  first->wake(nullptr);
  EXPECT_TRUE(right_on(first));
}

TEST_F(SleepingWeights, StayWhileSomebodyHoldsThem) {
  const Store store = load_on({0}).front();
  {
    const auto held = store->hold();
    EXPECT_FALSE(sleep(store));
    EXPECT_TRUE(right_on(store));
  }
  EXPECT_TRUE(sleep(store));
}

TEST_F(SleepingWeights, OfABaseAreHeldByWhoUsesThem) {
  const Store base = load_on({0}).front();
  const auto beside = [this](const Store& store) {
    Request request;
    request.devices = {0};
    return std::const_pointer_cast<CudaWeightStore>(load(files.plan(store), request).front());
  };
  EXPECT_TRUE(sleep(base));
  const Store second = beside(base);
  const Store third = beside(second);
  EXPECT_TRUE(base->can_sleep());
  EXPECT_FALSE(second->can_sleep());
  EXPECT_TRUE(throws(ErrorKind::device, {"asleep on cuda:0", "Pool.wake"}, [&] { third->hold(); }));
  base->wake(nullptr);
  EXPECT_TRUE(right_on(third));
  const auto held = third->hold();
  EXPECT_FALSE(sleep(base));
}

TEST_F(SleepingWeights, SayWhatIsMissingAndSleepOn) {
  const Store store = load_on({0}).front();
  EXPECT_TRUE(sleep(store));
  fake.memory_limit[0] = 1000;
  EXPECT_TRUE(throws(ErrorKind::out_of_memory, {"the weights take", "on cuda:0, which has 1 kB free"},
                     [&] { store->wake(nullptr); }));
  fake.memory_limit.clear();
  store->wake(nullptr);
  EXPECT_TRUE(right_on(store));
  EXPECT_TRUE(sleep(store));
  std::filesystem::resize_file(files.path(0), 100);
  EXPECT_TRUE(throws(ErrorKind::weights, {files.path(0).c_str()}, [&] { store->wake(nullptr); }));
  EXPECT_EQ(fake.allocated(0), 0);
  std::filesystem::remove(files.path(0));
  EXPECT_TRUE(throws(ErrorKind::weights, {files.path(0).c_str()}, [&] { store->wake(nullptr); }));
}

TEST_F(SleepingWeights, RefuseAPinnedCopyBeyondTheLimit) {
  const Store store = load_on({0}).front();
  setenv("ORTMULTI_PINNED_BYTES", "1000", 1);
  EXPECT_TRUE(throws(ErrorKind::out_of_memory, {"a pinned copy", "ORTMULTI_PINNED_BYTES"},
                     [&] { static_cast<void>(sleep(store, true)); }));
  setenv("ORTMULTI_PINNED_BYTES", "many", 1);
  EXPECT_TRUE(throws(ErrorKind::invalid_argument, {"not 'many'"}, [&] { static_cast<void>(sleep(store, true)); }));
  EXPECT_TRUE(right_on(store));
  setenv("ORTMULTI_PINNED_BYTES", "1000", 1);
  EXPECT_TRUE(store->sleep(HostCopy::if_possible, Clock::now())) << "it can be read from the files";
  unsetenv("ORTMULTI_PINNED_BYTES");
  store->wake(nullptr);
  EXPECT_TRUE(right_on(store));
  EXPECT_TRUE(sleep(store, true));
}

// Whichever call of the driver fails: an error, no memory that leaks, and the next try works.
TEST_F(SleepingWeights, SurviveTheFailureOfEachCallOfTheDriver) {
  for (const bool pinned : {false, true}) {
    SCOPED_TRACE(pinned);
    {
      const Store store = load_on({0}).front();
      const auto calls = [&] {
        const std::lock_guard lock(fake.mutex);
        return fake.calls;
      };
      const auto round = [&] {
        ASSERT_TRUE(sleep(store, pinned));
        store->wake(nullptr);
      };
      auto before = calls();
      round();
      std::map<std::string, int> each;
      for (const auto& [function, count] : calls()) {
        each[function] = count - before[function];
      }
      for (const auto& [function, count] : each) {
        for (int nth = 1; nth <= count; ++nth) {
          SCOPED_TRACE(function + " " + std::to_string(nth));
          fake.failing_call[function] = {calls()[function] + nth, CUDA_ERROR_UNKNOWN};
          bool failed = false;
          try {
            round();
          } catch (const Error&) {
            failed = true;
          }
          fake.failing_call.clear();
          if (failed) {
            static_cast<void>(sleep(store, pinned));
            store->wake(nullptr);
          }
          ASSERT_TRUE(right_on(store));
        }
      }
    }
    EXPECT_TRUE(nothing_left());
  }
}

TEST_F(SleepingWeights, AnswerEveryRequestOnceInRandomSchedules) {
  const Rounds schedules(1000);
  constexpr int requests = 12;
  for (int number = 0; schedules.have(number); ++number) {
    SCOPED_TRACE(number);
    std::mt19937 random(static_cast<unsigned>(number));
    if (number % 100 == 0) {
      restart();
    }
    fake.peers = random() % 2 == 0;
    const std::vector<Store> stores = load_on({0, 1});
    const auto pool = Pool::make({});
    for (const Store& store : stores) {
      pool->add({std::make_shared<ReadingRunner>(store, files, fake)});
    }
    Answers answers;
    std::thread client([&, seed = random()] {
      std::mt19937 of_client(static_cast<unsigned>(seed));
      for (int i = 0; i < requests; ++i) {
        const auto request = answers.request();
        if (of_client() % 3 != 0) {
          request->device = Device::cuda(static_cast<int>(of_client() % 2));
        }
        pool->submit(request, std::nullopt);
        for (auto pause = of_client() % 50; pause > 0; --pause) {
          std::this_thread::yield();
        }
      }
    });
    for (int i = 0; i < 6; ++i) {
      const Store& store = stores[random() % 2];
      const Device device = store->device();
      const HostCopy copy = random() % 2 == 0 ? HostCopy::pinned : HostCopy::none;
      const auto sleep = sleep_of(store, copy);
      if (random() % 4 != 0) {
        if (!pool->sleep(device, sleep, Clock::now() + std::chrono::milliseconds(random() % 20))) {
          pool->stay_awake(device, sleep);
        }
      } else {
        pool->wake(device);
        EXPECT_TRUE(pool->wait_until_awake(device, Clock::now() + std::chrono::seconds(60)));
      }
    }
    client.join();
    for (const auto& request : answers.wait_for(requests)) {
      ASSERT_EQ(request->outcome, ortmulti::Request::Outcome::done) << text_of(*request);
    }
    EXPECT_TRUE(pool->close(false));
    EXPECT_EQ(answers.count(), requests);
  }
}

}  // namespace
}  // namespace ortmulti::tests
