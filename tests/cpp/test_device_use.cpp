#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <optional>
#include <thread>

#include "core/base/scope_exit.hpp"
#include "core/cuda/device_sync_guard.hpp"
#include "core/ort/device_use.hpp"

namespace ortmulti::tests {
namespace {

// Its own in each test, since what is under way is the process's.
Device gpu(int index) { return Device::cuda(2000 + index); }

void use_in_a_thread_that_ends(const Device& device) {
  std::thread([&device] {
    static_cast<void>(DeviceUse::ended_threads());
    const DeviceUse use(device);
  }).join();
}

std::future<void> capture_on(const Device& device) {
  return std::async(std::launch::async,
                    [device] { const DeviceSyncGuard guard(device, DeviceSyncGuard::Work::may_capture); });
}

bool waits(const std::future<void>& future) {
  return future.wait_for(std::chrono::milliseconds(20)) == std::future_status::timeout;
}

TEST(DeviceUse, AThreadThatEndsKeepsCapturesAwayFromTheUsesThatItsHandlesMayEndIn) {
  static_cast<void>(DeviceUse::ended_threads());
  std::optional<DeviceUse> use(gpu(0));
  use_in_a_thread_that_ends(gpu(0));
  auto capture = capture_on(gpu(0));
  EXPECT_TRUE(waits(capture));
  capture_on(gpu(1)).get();  // of another device
  use.reset();
  capture.get();
}

TEST(DeviceUse, UsesAfterTheEndDoNotCount) {
  use_in_a_thread_that_ends(gpu(2));
  const DeviceUse use(gpu(2));
  capture_on(gpu(2)).get();
}

TEST(DeviceUse, AnEarlierUseCountsForEveryEndAfterIt) {
  std::optional<DeviceUse> first(gpu(3));
  use_in_a_thread_that_ends(gpu(3));
  std::optional<DeviceUse> second(gpu(3));
  use_in_a_thread_that_ends(gpu(3));
  second.reset();
  auto capture = capture_on(gpu(3));
  EXPECT_TRUE(waits(capture));
  first.reset();
  capture.get();
}

TEST(DeviceUse, AThreadEndsOnceTheCaptureIsOver) {
  std::optional<DeviceSyncGuard> capture;
  capture.emplace(gpu(4), DeviceSyncGuard::Work::may_capture);
  auto ends = std::async(std::launch::async, [] { use_in_a_thread_that_ends(gpu(4)); });
  EXPECT_TRUE(waits(ends));
  capture.reset();
  ends.get();
}

// What a thread has when ONNX Runtime's object of it goes: made in a run, after a use that had failed.
TEST(DeviceUse, CapturesAreKeptAwayBeforeWhatARunMadeGoes) {
  std::optional<DeviceUse> use(gpu(6));
  std::future<void> capture;
  bool waited = false;
  std::thread([&] {
    static_cast<void>(DeviceUse::ended_threads());
    {
      const DeviceUse failed(gpu(6));
    }
    const DeviceUse run(gpu(6));
    thread_local const ScopeExit made([&] {
      capture = capture_on(gpu(6));
      waited = waits(capture);
    });
    static_cast<void>(made);
    DeviceUse::ran();
  }).join();
  EXPECT_TRUE(waited);
  use.reset();
  capture.get();
}

TEST(DeviceUse, AnEndIsToldBeforeAndAfterIt) {
  const std::uint64_t before = DeviceUse::ended_threads();
  std::thread([] { static_cast<void>(DeviceUse::ended_threads()); }).join();  // it used nothing
  EXPECT_EQ(DeviceUse::ended_threads(), before);
  use_in_a_thread_that_ends(gpu(5));
  EXPECT_EQ(DeviceUse::ended_threads(), before + 2);
  std::thread([] {
    static_cast<void>(DeviceUse::ended_threads());
    const DeviceUse run(gpu(5));
    DeviceUse::ran();
  }).join();
  EXPECT_GE(DeviceUse::ended_threads(), before + 4);
}

}  // namespace
}  // namespace ortmulti::tests
