#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/pool/pool.hpp"
#include "core/weights/store.hpp"
#include "loading.hpp"

namespace ortmulti::tests {

/// Compares weights with the files in each run, as a session on a GPU reads them.
class ReadingRunner : public Runner {
 public:
  /// A run fails, too, where more than `budget` bytes of the store's device are in use.
  ReadingRunner(std::shared_ptr<CudaWeightStore> store, const WeightFiles& files, const FakeCuda& fake,
                std::uint64_t budget = std::numeric_limits<std::uint64_t>::max())
      : store_(std::move(store)), device_(store_->device()), files_(files), fake_(fake), budget_(budget) {}
  const Device& device() const noexcept override { return device_; }
  void run(Request& request) override {
    const auto held = store_->hold();
    const std::size_t weight = ran.size() % store_->plan().list.weights.size();
    const std::string expected = files_.expected(weight);
    if (fake_.read(store_->address(weight), expected.size()) != expected) {
      throw Error(ErrorKind::fail, "wrong bytes");
    }
    if (fake_.allocated(device_.index) > budget_) {
      throw Error(ErrorKind::fail, std::to_string(fake_.allocated(device_.index)) + " bytes are in use");
    }
    ran.push_back(&request);
  }
  void terminate(Request& /*request*/) noexcept override {}
  std::string why_broken() noexcept override { return {}; }

  std::vector<const Request*> ran;  ///< In their order.

 private:
  std::shared_ptr<CudaWeightStore> store_;
  Device device_;
  const WeightFiles& files_;
  const FakeCuda& fake_;
  const std::uint64_t budget_;
};

/// Has a device of a pool sleep without its weights.
inline std::shared_ptr<DeviceSleep> sleep_of(const std::shared_ptr<CudaWeightStore>& store, HostCopy copy) {
  auto sleep = std::make_shared<DeviceSleep>(SleepLevel::weights);
  sleep->sleep = [store, copy](std::chrono::steady_clock::time_point until) { return store->sleep(copy, until); };
  sleep->wake = [store] { store->wake(nullptr); };
  return sleep;
}

}  // namespace ortmulti::tests
