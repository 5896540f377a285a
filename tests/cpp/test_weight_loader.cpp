#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.hpp"
#include "loading.hpp"

namespace ortmulti::tests {
namespace {

using Kind = FakeCuda::Copy::Kind;

// Waits as long as no test takes: false is a hang.
bool happens(const std::shared_future<void>& event) {
  return event.wait_for(std::chrono::seconds(60)) == std::future_status::ready;
}

class WeightLoading : public Loading {
 protected:
  // Lets copies and contexts take turns that are different each time.
  void disturb(unsigned seed) {
    fake.on_copy = [seed](const FakeCuda::Copy& copy) {
      std::mt19937 random(seed * 1000 + static_cast<unsigned>(copy.number));
      for (auto i = random() % 100; i > 0; --i) {
        std::this_thread::yield();
      }
      return CUDA_SUCCESS;
    };
  }
  // Copies by kind and device.
  void count_copies() {
    fake.on_copy = [this](const FakeCuda::Copy& copy) {
      const std::lock_guard lock(mutex);
      copied[{copy.kind, copy.device}] += copy.bytes;
      return CUDA_SUCCESS;
    };
  }
  std::mutex mutex;
  std::map<std::pair<Kind, int>, std::uint64_t> copied;
};

TEST_F(WeightLoading, PutsTheRightBytesOnEveryDevice) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    WeightFiles files(seed);
    files.add_random(1 + random() % 3, 1 + random() % 150);
    restart();
    disturb(seed);
    fake.peers = random() % 4 != 0;
    fake.unreachable.clear();
    for (int i = 0; i < static_cast<int>(random() % 8); ++i) {
      fake.unreachable.insert({random() % 4, random() % 4});
    }
    Request request;
    request.devices = {0, 1, 2, 3};
    std::shuffle(request.devices.begin(), request.devices.end(), random);
    request.devices.resize(1 + random() % 4);
    request.order.resize(request.devices.size());
    std::iota(request.order.begin(), request.order.end(), std::size_t{0});
    std::shuffle(request.order.begin(), request.order.end(), random);
    request.options = {static_cast<int>(1 + random() % 3), std::uint64_t{512} << (random() % 8),
                       static_cast<int>(1 + random() % 3)};
    if (random() % 2 == 0) {
      startup->begin_contexts(std::nullopt);
    }
    if (random() % 2 == 0) {
      std::vector<Prefetch::Range> ranges;
      ranges.reserve(files.list.sources.size());
      for (const auto& file : files.list.sources) {
        ranges.push_back({file, 0, file->size()});
      }
      request.prefetch = std::make_shared<Prefetch>(ranges);
    }
    EXPECT_TRUE(right(files, load(files.plan(), request)));
    request.prefetch = nullptr;
    EXPECT_TRUE(nothing_left());
  }
  EXPECT_EQ(fake.pageable_copies, 0);
  EXPECT_EQ(fake.indirect_copies, 0);
}

TEST_F(WeightLoading, TakesMemoryForFiles) {
  WeightFiles files;
  files.add_random(3, 100);
  std::vector<std::weak_ptr<const std::string>> watched;
  for (auto& file : files.list.sources) {
    const auto bytes = std::make_shared<const std::string>(read_file(file->name()));
    watched.emplace_back(bytes);
    std::filesystem::remove(file->name());
    file = memory_source(file->name(), {bytes, reinterpret_cast<const unsigned char*>(bytes->data())}, file->size());
  }
  EXPECT_TRUE(right(files, load(files.plan(), Request())));
  files.list.sources.clear();
  for (const auto& bytes : watched) {
    EXPECT_TRUE(bytes.expired());
  }
}

TEST_F(WeightLoading, ReadsOnceAndCopiesFromTheFirstDevice) {
  WeightFiles files;
  files.add_even(300, 1000);
  count_copies();
  Request request;
  request.devices = {2, 0, 1};
  EXPECT_TRUE(right(files, load(files.plan(), request)));
  EXPECT_EQ((copied[{Kind::to_device, 2}]), files.plan()->file_bytes());
  EXPECT_EQ((copied[{Kind::peer, 0}]), files.plan()->slab_bytes);
  EXPECT_EQ((copied[{Kind::peer, 1}]), files.plan()->slab_bytes);
  EXPECT_EQ(copied.size(), 3U);
}

TEST_F(WeightLoading, WithoutPeerAccessOnePassServesTheDevicesThatAreThere) {
  WeightFiles files;
  files.add_even(300, 1000);
  fake.peers = false;
  for (int device = 0; device < 4; ++device) {
    startup->make_current(device);
  }
  count_copies();
  Request request;
  request.devices = {0, 1, 2, 3};
  request.timeline = std::make_shared<Timeline>();
  EXPECT_TRUE(right(files, load(files.plan(), request)));
  for (int device = 0; device < 4; ++device) {
    EXPECT_EQ((copied[{Kind::to_device, device}]), files.plan()->file_bytes());
  }
  const std::vector<Span> spans = request.timeline->spans();
  EXPECT_EQ(std::count_if(spans.begin(), spans.end(), [](const Span& span) { return span.name == "load weights"; }), 1);
}

TEST_F(WeightLoading, BeginsBeforeTheOtherContextsAreThere) {
  WeightFiles files;
  files.add_even(300, 1000);
  std::promise<void> begun;
  const std::shared_future<void> first_copy = begun.get_future().share();
  std::atomic<bool> in_time{true};
  std::once_flag once;
  fake.on_copy = [&](const FakeCuda::Copy&) {
    std::call_once(once, [&] { begun.set_value(); });
    return CUDA_SUCCESS;
  };
  fake.on_context = [&](int device) {
    if (device != 0 && !happens(first_copy)) {
      in_time = false;
    }
  };
  startup->begin_contexts(std::vector<int>{0, 1, 2});
  EXPECT_TRUE(right(files, load(files.plan(), {})));
  EXPECT_TRUE(in_time);
}

TEST_F(WeightLoading, DevicesMayComeLongAfterTheFirstIsFull) {
  for (const bool peers : {true, false}) {
    WeightFiles files;
    files.add_even(300, 1000);
    restart();
    fake.peers = peers;
    std::promise<void> filled;
    const std::shared_future<void> first_filled = filled.get_future().share();
    std::atomic<bool> in_time{true};
    fake.on_context = [&](int device) {
      if (device != 0 && !happens(first_filled)) {
        in_time = false;
      }
    };
    std::thread watcher;
    Request request;
    request.before = [&](WeightLoader& loader) {
      watcher = std::thread([&] {
        loader.wait_filled(0);
        EXPECT_EQ(loader.copied_bytes(), loader.total_bytes());
        filled.set_value();
      });
    };
    request.after = [&](WeightLoader&) { watcher.join(); };
    startup->begin_contexts(std::vector<int>{0, 1, 2});
    EXPECT_TRUE(right(files, load(files.plan(), request)));
    EXPECT_TRUE(in_time);
    EXPECT_TRUE(nothing_left());
  }
}

TEST_F(WeightLoading, NothingIsCopiedToAPeerBeforeItIsWanted) {
  WeightFiles files;
  files.add_even(100, 1000);
  count_copies();
  WeightLoader loader(*startup, {files.plan(), nullptr, {}, true}, {0, 1}, nullptr);
  std::thread first([&] { loader.bring_up(0); });
  std::thread second([&] { loader.bring_up(1); });
  loader.wait_filled(0);
  first.join();
  loader.stop();
  second.join();
  EXPECT_EQ((copied[{Kind::to_device, 0}]), files.plan()->file_bytes());
  EXPECT_EQ((copied[{Kind::peer, 1}]), 0U);
}

TEST_F(WeightLoading, PinsNoMoreThanItsBuffers) {
  WeightFiles files;
  files.add_even(20, 100'000);
  Request request;
  request.options = {2, 4096, 3};
  EXPECT_TRUE(right(files, load(files.plan(), request)));
  EXPECT_GT(fake.peak_registered(), 0U);
  EXPECT_LE(fake.peak_registered(), 2U * 3 * (2U << 20U));  // whole huge pages
}

TEST_F(WeightLoading, WithoutFillingMemoryIsAllocatedAlone) {
  WeightFiles files;
  files.add_even(10, 1000);
  Request request;
  request.fill = false;
  const Stores stores = load(files.plan(), request);
  EXPECT_EQ(stores.size(), 3U);
  EXPECT_EQ(fake.live().allocations, 3U);
  EXPECT_EQ(fake.calls.count("cuMemcpyHtoDAsync") + fake.calls.count("cuMemHostRegister"), 0U);
}

TEST_F(WeightLoading, OfNothing) {
  const auto plan = std::make_shared<const WeightPlan>();
  EXPECT_EQ(load(plan, {}).size(), 3U);
}

// One device's weights, and further ones beside them.
class WeightsBeside : public WeightLoading {
 protected:
  std::shared_ptr<const CudaWeightStore> load_beside(const std::shared_ptr<const CudaWeightStore>& base) {
    Request request;
    request.devices = {1};
    return load(files.plan(base), request).front();
  }
  std::vector<CUdeviceptr> addresses(const CudaWeightStore& store) const {
    std::vector<CUdeviceptr> result;
    result.reserve(files.list.weights.size());
    for (std::size_t i = 0; i < files.list.weights.size(); ++i) {
      result.push_back(store.address(i));
    }
    return result;
  }

  WeightFiles files;
};

TEST_F(WeightsBeside, AreNotReadWhereAllAreThere) {
  files.add_random(2, 40);
  auto base = load_beside(nullptr);
  const std::vector<CUdeviceptr> there = addresses(*base);
  for (const auto& source : files.list.sources) {
    std::filesystem::remove(source->name());
  }
  for (Weight& weight : files.list.weights) {
    weight.name += " under another name";
  }
  const std::size_t allocated = fake.allocated(1);
  const auto calls = [this](const char* function) {
    const std::lock_guard lock(fake.mutex);
    return fake.calls[function];
  };
  const int copies = calls("cuMemcpyHtoDAsync");
  const int pinned = calls("cuMemHostRegister");
  auto second = load_beside(base);
  const auto third = load_beside(second);
  EXPECT_EQ(third->plan().file_bytes(), 0U);
  EXPECT_EQ(fake.allocated(1), allocated + 2 * WeightPlan::alignment);
  EXPECT_EQ(calls("cuMemcpyHtoDAsync"), copies);
  EXPECT_EQ(calls("cuMemHostRegister"), pinned);
  EXPECT_EQ(addresses(*second), there);
  EXPECT_EQ(addresses(*third), there);
  base.reset();
  second.reset();
  EXPECT_TRUE(right(files, {third}));
}

TEST_F(WeightsBeside, AreReadAsFarAsTheyAreNotThere) {
  count_copies();
  Stores chain{nullptr};
  std::uint64_t there = 0;
  for (int i = 0; i < 10; ++i) {
    files.add_random(1, 40);  // and those before are in another order
    copied.clear();
    chain.push_back(load_beside(chain.back()));
    EXPECT_EQ((copied[{Kind::to_device, 1}]), files.plan()->file_bytes() - there);
    EXPECT_TRUE(right(files, {chain.back()}));
    there = files.plan()->file_bytes();
  }
}

TEST_F(WeightsBeside, AreReadAnewUnlessSourceAndPlaceAndTypeAndShapeAreTheSame) {
  files.add_even(1, 4096);
  files.add_even(1, 4096);
  const WeightList list = files.list;
  const auto base = load_beside(nullptr);
  const std::vector<std::function<void(Weight&)>> changes = {
      [](Weight& weight) {
        weight.offset = 1024;
        weight.length = 3072;
      },
      [](Weight& weight) { weight.length = 1024; },
      [](Weight& weight) { weight.data_type = 3; },
      [](Weight& weight) { weight.shape = {64, 64}; },
      [this](Weight& /*weight*/) {
        std::filesystem::resize_file(files.path(0), 8192);
        files.list.sources[0] = file_source(files.path(0));
      },
  };
  for (const auto& change : changes) {
    files.list = list;
    change(files.list.weights[0]);
    const auto second = load_beside(base);
    EXPECT_NE(second->address(0), base->address(0));
    EXPECT_EQ(second->address(1), base->address(1));
    EXPECT_EQ(second->plan().slab_bytes, files.list.weights[0].length);
    EXPECT_TRUE(right(files, {second}));
  }
}

TEST_F(WeightsBeside, AreForTheSameDevice) {
  files.add_even(10, 1000);
  const auto base = load_beside(nullptr);
  Request request;
  request.devices = {1, 2};
  EXPECT_TRUE(throws(ErrorKind::invalid_argument, {"cuda:1", "cuda:2"}, [&] { load(files.plan(base), request); }));
}

TEST_F(WeightLoading, TheMachineChoosesByDefault) {
  WeightFiles files;
  files.add_even(64, 1U << 20U);
  Request request;
  request.options = {};
  EXPECT_TRUE(right(files, load(files.plan(), request)));
}

TEST_F(WeightLoading, ProgressGrowsToAllOfIt) {
  WeightFiles files;
  files.add_even(300, 1000);
  std::atomic<std::uint64_t> last{0};
  Request request;
  request.before = [&](WeightLoader& loader) {
    EXPECT_EQ(loader.copied_bytes(), 0U);
    EXPECT_EQ(loader.total_bytes(), 300'000U);
    fake.on_copy = [&](const FakeCuda::Copy&) {
      const std::uint64_t before = last.load();
      const std::uint64_t now = loader.copied_bytes();
      EXPECT_GE(now, before);
      EXPECT_LE(now, 300'000U);
      last = now;
      return CUDA_SUCCESS;
    };
  };
  request.after = [&](WeightLoader& loader) { EXPECT_EQ(loader.copied_bytes(), 300'000U); };
  request.devices = {0};
  request.options.reader_threads = 1;
  EXPECT_TRUE(right(files, load(files.plan(), request)));
  EXPECT_GT(last, 0U);
}

TEST_F(WeightLoading, SeveralModelsAtOnce) {
  disturb(3);
  for (int round = 0; round < 5; ++round) {
    in_threads(4, [&](int i) {
      WeightFiles files(static_cast<unsigned>(i));
      files.add_random(2, 60);
      Request request;
      std::ranges::rotate(request.devices, request.devices.begin() + i % 3);
      EXPECT_TRUE(right(files, load(files.plan(), request)));
    });
    EXPECT_TRUE(nothing_left());
  }
}

TEST_F(WeightLoading, HundredsOfTimes) {
  WeightFiles files;
  files.add_even(20, 1100);
  files.add_random(1, 20);
  const auto plan = files.plan();
  const Rounds times(500);
  for (int i = 0; times.have(i); ++i) {
    if (i % 50 == 0) {
      restart();
    }
    disturb(static_cast<unsigned>(i));
    fake.peers = i % 3 != 0;
    Request request;
    request.devices = i % 2 == 0 ? std::vector<int>{0, 1, 2} : std::vector<int>{3, 1};
    request.options = {1 + i % 2, 8192, 1};
    ASSERT_TRUE(right(files, load(plan, request))) << i;
    ASSERT_TRUE(nothing_left()) << i;
  }
}

using WeightLoadingDeathTest = WeightLoading;

TEST_F(WeightLoadingDeathTest, AForkedChildLeavesTheMemoryToItsParent) {
  expect_in_own_process([&] {
    WeightFiles files;
    files.add_even(10, 1000);
    Stores stores = load(files.plan(), {});
    fake.settle();  // ThreadSanitizer would miss the threads in the child
    const bool good = in_forked_child([&] {
                        const int before = fake.calls["cuMemFree"];
                        stores.clear();
                        return fake.calls["cuMemFree"] == before;
                      }) &&
                      right(files, stores);
    stores.clear();
    return good && nothing_left();
  });
}

}  // namespace
}  // namespace ortmulti::tests
