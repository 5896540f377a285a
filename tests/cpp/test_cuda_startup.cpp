#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/cuda/memory.hpp"
#include "core/cuda/startup.hpp"
#include "failing_threads.hpp"
#include "fake_cuda.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

// Sets a variable of the environment, or removes it, and puts back what was there.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name); before != nullptr) {
      before_ = before;
    }
    value == nullptr ? unsetenv(name) : setenv(name, value, 1);
  }
  ~Environment() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

class Startup : public testing::Test {
 protected:
  Startup() { FakeCuda::reset(); }

  void add_hardware() const {
    sysfs.write("bus/pci/devices/0000:18:00.0/vendor", "0x10de\n");
    sysfs.write("bus/pci/devices/0000:18:00.0/class", "0x030200\n");
  }
  std::unique_ptr<CudaStartup> make() const { return std::make_unique<CudaStartup>(&driver, "", sysfs.path()); }
  std::unique_ptr<CudaStartup> without_driver() const {
    return std::make_unique<CudaStartup>(nullptr, "no NVIDIA driver: libcuda.so.1 is missing", sysfs.path());
  }
  static void fail(const char* function, CUresult result = CUDA_ERROR_ECC_UNCORRECTABLE) {
    FakeCuda::state().failing = {{function, result}};
  }
  static void recover() { FakeCuda::state().failing.clear(); }

  CudaDriver driver = FakeCuda::table();
  TemporaryFolder sysfs;
  Environment visible{"CUDA_VISIBLE_DEVICES", nullptr};
};

TEST_F(Startup, CountsTheDevicesAndStartsOnce) {
  FakeCuda::state().devices = 5;
  const auto startup = make();
  EXPECT_FALSE(startup->started());
  EXPECT_EQ(FakeCuda::state().init_calls, 0);
  Timeline timeline;
  EXPECT_EQ(startup->device_count(&timeline), 5);
  EXPECT_EQ(startup->device_count(&timeline), 5);
  EXPECT_TRUE(startup->started());
  EXPECT_EQ(FakeCuda::state().init_calls, 1);
  ASSERT_EQ(timeline.spans().size(), 1U);
  EXPECT_EQ(timeline.spans()[0].name, "cuInit");
}

TEST_F(Startup, TheVersionDoesNotStartAnything) {
  EXPECT_EQ(make()->driver_version(), 13000);
  EXPECT_EQ(FakeCuda::state().init_calls, 0);
  EXPECT_EQ(without_driver()->driver_version(), std::nullopt);
  EXPECT_EQ(make()->driver_problem(), "");
  EXPECT_NE(without_driver()->driver_problem().find("libcuda.so.1"), std::string::npos);
}

TEST_F(Startup, WithoutHardwareThereAreNoDevices) {
  EXPECT_EQ(without_driver()->device_count(), 0);
  EXPECT_FALSE(without_driver()->started());
  fail("cuInit", CUDA_ERROR_NO_DEVICE);
  EXPECT_EQ(make()->device_count(), 0);
}

TEST_F(Startup, HardwareThatCannotBeUsedIsAnError) {
  add_hardware();
  EXPECT_TRUE(
      throws(ErrorKind::device, {"NVIDIA GPU", "libcuda.so.1 is missing"}, [&] { without_driver()->device_count(); }));
  fail("cuInit", CUDA_ERROR_NO_DEVICE);
  const auto startup = make();
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(
        throws(ErrorKind::device, {"cuInit failed", "CUDA_ERROR_NO_DEVICE (100)"}, [&] { startup->device_count(); }));
  }
  EXPECT_EQ(FakeCuda::state().init_calls, 1);
}

TEST_F(Startup, ADriverThatFailsIsAnErrorEvenWithoutVisibleHardware) {
  fail("cuInit", CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
  EXPECT_TRUE(throws(ErrorKind::device, {"cuInit failed", "(803)"}, [&] { make()->device_count(); }));
  const Environment hidden("CUDA_VISIBLE_DEVICES", "");
  EXPECT_TRUE(throws(ErrorKind::device, {"cuInit failed", "(803)"}, [&] { make()->device_count(); }));
}

TEST_F(Startup, HardwareMayBeHidden) {
  add_hardware();
  fail("cuInit", CUDA_ERROR_NO_DEVICE);
  for (const char* value : {"", "-1", "-1,0", "none", "NoDevFiles"}) {
    const Environment hidden("CUDA_VISIBLE_DEVICES", value);
    EXPECT_EQ(make()->device_count(), 0) << "'" << value << "'";
    EXPECT_EQ(without_driver()->device_count(), 0) << "'" << value << "'";
  }
}

TEST_F(Startup, AskingForHardwareDoesNotHideThatItCannotBeUsed) {
  add_hardware();
  fail("cuInit", CUDA_ERROR_NO_DEVICE);
  for (const char* value : {"0", "1,2", "GPU-8e0d", "MIG-8e0d"}) {
    const Environment chosen("CUDA_VISIBLE_DEVICES", value);
    EXPECT_TRUE(
        throws(ErrorKind::device, {"libcuda.so.1 is missing", value}, [&] { without_driver()->device_count(); }));
    EXPECT_TRUE(throws(ErrorKind::device, {"CUDA_ERROR_NO_DEVICE", value}, [&] { make()->device_count(); }));
  }
}

TEST_F(Startup, DevicesThatDoNotExistAreNamedWithWhatThereIs) {
  const auto startup = make();
  for (const int device : {-1, 2, 1000}) {
    const std::string name = "cuda:" + std::to_string(device);
    const auto check = [&](const std::function<void()>& call) {
      EXPECT_TRUE(throws(ErrorKind::device, {name.c_str(), "does not exist", "there are 2"}, call));
    };
    check([&] { startup->make_current(device); });
    check([&] { startup->describe(device); });
    check([&] { startup->memory(device); });
    check([&] { startup->can_access_peer(0, device); });
    check([&] { startup->can_access_peer(device, 0); });
  }
  EXPECT_TRUE(FakeCuda::state().contexts.empty());
  EXPECT_TRUE(throws(ErrorKind::device, {"cuda:0 does not exist", "there are none", "libcuda.so.1 is missing"},
                     [&] { without_driver()->make_current(0); }));
}

TEST_F(Startup, DescribesADevice) {
  const CudaDeviceInfo info = make()->describe(1);
  EXPECT_EQ(info.index, 1);
  EXPECT_EQ(info.name, "Fake GPU 1");
  EXPECT_EQ(info.uuid, "GPU-011f2f3f-4f5f-6f7f-8f9f-afbfcfdfefff");
  EXPECT_EQ(info.pci_bus_id, "0000:19:00.0");
  EXPECT_EQ(info.total_memory, FakeCuda::total_memory(1));
  EXPECT_EQ(info.compute_major, 9);
  EXPECT_EQ(info.compute_minor, 1);
  EXPECT_TRUE(FakeCuda::state().contexts.empty()) << "a description needs no context";
}

TEST_F(Startup, AsksForPeerAccess) {
  const auto startup = make();
  EXPECT_TRUE(startup->can_access_peer(0, 1));
  FakeCuda::state().peers = false;
  EXPECT_FALSE(startup->can_access_peer(0, 1));
}

TEST_F(Startup, MakesTheAskedDeviceCurrent) {
  const auto startup = make();
  Timeline timeline;
  for (const int device : {1, 0, 1, 1, 0}) {
    startup->make_current(device, &timeline);
    EXPECT_EQ(FakeCuda::current(), device);
  }
  EXPECT_EQ(FakeCuda::state().contexts, (std::vector<int>{1, 0}));
  const auto spans = timeline.spans();
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_EQ(spans[1].name, "context");
  EXPECT_EQ(spans[1].device, "cuda:1");
  EXPECT_EQ(spans[2].device, "cuda:0");
  EXPECT_EQ(startup->memory(1).free, FakeCuda::free_memory(1));
  EXPECT_EQ(startup->memory(1).total, FakeCuda::total_memory(1));
  EXPECT_EQ(startup->memory(0).free, FakeCuda::free_memory(0));
}

TEST_F(Startup, AContextThatIsThereIsNotLookedForAgain) {
  const auto startup = make();
  startup->make_current(0);
  startup->make_current(1);
  auto& calls = FakeCuda::state().calls;
  calls.clear();
  {
    const ScopedContext same(*startup, 1);
    const ScopedContext again(*startup, 1);
    EXPECT_EQ(FakeCuda::current(), 1);
  }
  EXPECT_EQ(calls, (std::map<std::string, int>{{"cuCtxGetCurrent", 2}}));
  {
    const ScopedContext other(*startup, 0);
    EXPECT_EQ(FakeCuda::current(), 0);
  }
  EXPECT_EQ(FakeCuda::current(), 1);
  EXPECT_EQ(calls.count("cuDeviceGet"), 0);
  EXPECT_EQ(calls["cuCtxSetCurrent"], 2);
}

TEST_F(Startup, EveryFailingCallIsNamedAndMayRecover) {
  struct Case {
    const char* function;
    void (*call)(CudaStartup&);
    const char* words;
  };
  const Case cases[] = {
      {"cuDeviceGetCount", [](CudaStartup& s) { s.device_count(); }, "counting"},
      {"cuDeviceGet", [](CudaStartup& s) { s.make_current(1); }, "cuda:1"},
      {"cuDevicePrimaryCtxRetain", [](CudaStartup& s) { s.make_current(1); }, "cuda:1"},
      {"cuCtxSetCurrent", [](CudaStartup& s) { s.make_current(0); }, "cuda:0"},
      {"cuMemGetInfo", [](CudaStartup& s) { s.memory(1); }, "cuda:1"},
      {"cuDeviceGetName", [](CudaStartup& s) { s.describe(1); }, "cuda:1"},
      {"cuDeviceGetUuid", [](CudaStartup& s) { s.describe(1); }, "cuda:1"},
      {"cuDeviceGetPCIBusId", [](CudaStartup& s) { s.describe(1); }, "cuda:1"},
      {"cuDeviceTotalMem", [](CudaStartup& s) { s.describe(1); }, "cuda:1"},
      {"major", [](CudaStartup& s) { s.describe(1); }, "cuda:1"},
      {"minor", [](CudaStartup& s) { s.describe(1); }, "cuda:1"},
      {"cuDeviceCanAccessPeer", [](CudaStartup& s) { s.can_access_peer(0, 1); }, "peer"},
      {"cuDriverGetVersion", [](CudaStartup& s) { static_cast<void>(s.driver_version()); }, "version"},
  };
  for (const Case& failing : cases) {
    const auto startup = make();
    fail(failing.function);
    EXPECT_TRUE(throws(ErrorKind::device, {failing.words, "CUDA_ERROR_ECC_UNCORRECTABLE (214): uncorrectable ECC"},
                       [&] { failing.call(*startup); }))
        << failing.function;
    recover();
    EXPECT_NO_THROW(failing.call(*startup)) << failing.function;
  }
}

TEST_F(Startup, AFullDeviceIsOutOfMemory) {
  const auto startup = make();
  fail("cuDevicePrimaryCtxRetain", CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(throws(ErrorKind::out_of_memory, {"context of cuda:0", "CUDA_ERROR_OUT_OF_MEMORY (2)"},
                     [&] { startup->make_current(0); }));
  EXPECT_EQ(FakeCuda::current(), -1);
}

TEST_F(Startup, ContextsAreCreatedOnceAndOneAfterAnother) {
  constexpr int devices = 4;
  constexpr int threads = 16;
  FakeCuda::state().devices = devices;
  const auto startup = make();
  in_threads(threads, [&](int i) {
    startup->make_current(i % devices);
    EXPECT_EQ(FakeCuda::current(), i % devices);
  });
  EXPECT_EQ(FakeCuda::state().init_calls, 1);
  EXPECT_FALSE(FakeCuda::state().overlapped);
  std::vector<int> contexts = FakeCuda::state().contexts;
  std::ranges::sort(contexts);
  EXPECT_EQ(contexts, (std::vector<int>{0, 1, 2, 3}));
}

TEST_F(Startup, AHoldLetsOneDeviceComeFirst) {
  FakeCuda::state().devices = 4;
  const auto startup = make();
  CudaStartup::Hold hold(*startup, 2);
  startup->begin_contexts(std::nullopt);
  startup->make_current(2);
  EXPECT_EQ(FakeCuda::state().contexts, std::vector<int>{2});
  auto last = std::async(std::launch::async, [&] { startup->make_current(3); });
  hold.release();
  last.get();
  EXPECT_EQ(FakeCuda::state().contexts, (std::vector<int>{2, 0, 1, 3}));
  hold.release();
  startup->begin_contexts(std::vector<int>{0});  // all are there
}

TEST_F(Startup, WhatIsQueuedUnderAHoldComesAfterIt) {
  FakeCuda::state().devices = 3;
  const auto startup = make();
  {
    const CudaStartup::Hold first(*startup, 1);
    startup->begin_contexts(std::vector<int>{0});
    {
      const CudaStartup::Hold second(*startup, 2);
      startup->begin_contexts(std::vector<int>{1, 2});  // while the starter waits
      startup->make_current(2);
      startup->make_current(1);
    }
    EXPECT_FALSE(startup->has_context(0)) << "one hold is left";
  }
  startup->make_current(0);
  EXPECT_EQ(FakeCuda::state().contexts.back(), 0);
}

TEST_F(Startup, AHoldIsForContextsThatAreMadeInTheBackground) {
  FakeCuda::state().devices = 3;
  const auto startup = make();
  const CudaStartup::Hold hold(*startup, 0);
  startup->begin_contexts(std::vector<int>{1});
  startup->make_current(2);
  EXPECT_EQ(FakeCuda::state().contexts, std::vector<int>{2});
  auto waiting = std::async(std::launch::async, [&] { startup->make_current(1); });
  startup->join();  // gives up what is queued: who waits for it makes it
  waiting.get();
  EXPECT_TRUE(startup->has_context(1));
}

TEST_F(Startup, AStartWithoutAThreadIsAnErrorAndQueuesNothing) {
  FakeCuda::state().devices = 3;
  const auto startup = make();
  for (const auto& devices : {std::optional<std::vector<int>>(std::nullopt), std::optional(std::vector<int>{1, 2})}) {
    const NoThreads none;
    ASSERT_TRUE(throws(ErrorKind::runtime_exception, {"CUDA contexts", "start a thread"},
                       [&] { startup->begin_contexts(devices); }));
  }
  startup->make_current(1);
  EXPECT_EQ(FakeCuda::state().contexts, std::vector<int>{1}) << "nobody waits for a thread that is not there";
  startup->begin_contexts(std::nullopt);
  startup->make_current(2);
  startup->make_current(0);
  EXPECT_EQ(FakeCuda::state().contexts, (std::vector<int>{1, 0, 2}));
}

TEST_F(Startup, OpeningLibrariesWithoutAThreadIsAnErrorAndMayBeTriedAgain) {
  const auto startup = make();
  {
    const NoThreads none;
    ASSERT_TRUE(throws(ErrorKind::runtime_exception, {"CUDA libraries", "start a thread"},
                       [&] { startup->begin_opening({"libm.so.6"}, {}); }));
  }
  EXPECT_NO_THROW(startup->wait_for_libraries(nullptr));
  startup->begin_opening({"/nowhere/libno.so"}, {});
  EXPECT_TRUE(throws(ErrorKind::library, {"/nowhere/libno.so"}, [&] { startup->wait_for_libraries(nullptr); }));
}

TEST_F(Startup, NothingIsAwaitedWhereNoLibraryIsToBeOpened) {
  EXPECT_NO_THROW(make()->wait_for_libraries(nullptr));
  const auto startup = make();
  startup->begin_opening({}, {});
  EXPECT_NO_THROW(startup->wait_for_libraries(nullptr));
}

TEST_F(Startup, ALibraryThatCannotBeOpenedStaysAnError) {
  const auto startup = make();
  startup->begin_opening({"libm.so.6", sysfs.write("libcudart.so.13", "no library"), "libm.so.6"}, {});
  startup->begin_opening({"libm.so.6"}, {});  // only the first call counts
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(throws(ErrorKind::library, {"cannot open the CUDA library", "libcudart.so.13"},
                       [&] { startup->wait_for_libraries(nullptr); }));
  }
}

TEST_F(Startup, LibrariesAreOpenedOnceAndAwaitedByAll) {
  const auto startup = make();
  startup->begin_opening({"libm.so.6"}, {sysfs / "libnot_there.so.1"});
  Timeline timeline;
  in_threads(4, [&](int) { EXPECT_NO_THROW(startup->wait_for_libraries(&timeline)); });
  const auto spans = timeline.spans();
  EXPECT_EQ(
      std::count_if(spans.begin(), spans.end(), [](const Span& span) { return span.name == "open CUDA libraries"; }),
      1);
  startup->join();
  startup->join();
}

// In a process of its own, where nothing else has asked for forks to be watched.
class StartupDeathTest : public Startup {
 protected:
  static bool refuses(const std::function<void()>& call) {
    return static_cast<bool>(throws(ErrorKind::forked, {"forked", "spawn"}, call));
  }
};

TEST_F(StartupDeathTest, AChildOfAProcessThatStartedCudaIsRefused) {
  expect_in_own_process([&] {
    const auto startup = make();
    startup->make_current(1);
    const bool good = in_forked_child([&] {
      return refuses([&] { startup->device_count(); }) && refuses([&] { startup->make_current(1); }) &&
             refuses([&] { startup->make_current(0); }) && refuses([&] { startup->describe(0); }) &&
             refuses([&] { startup->memory(0); }) && refuses([&] { startup->can_access_peer(0, 1); }) &&
             FakeCuda::state().init_calls == 1;
    });
    startup->make_current(0);  // the parent goes on
    return good;
  });
}

TEST_F(StartupDeathTest, AChildDoesNotWaitForTheParentsLibraries) {
  expect_in_own_process([&] {
    const auto startup = make();
    startup->begin_opening({"libm.so.6"}, {});
    startup->join();
    const bool good = in_forked_child([&] {
      startup->join();
      return refuses([&] { startup->wait_for_libraries(nullptr); });
    });
    startup->wait_for_libraries(nullptr);
    return good;
  });
}

TEST_F(StartupDeathTest, AChildMayStartCudaWhereTheParentDidNot) {
  expect_in_own_process([&] {
    const auto startup = make();
    static_cast<void>(startup->driver_version());
    const bool good = in_forked_child([&] {
      startup->make_current(1);
      return FakeCuda::current() == 1;
    });
    return good && !startup->started();
  });
}

}  // namespace
}  // namespace ortmulti::tests
