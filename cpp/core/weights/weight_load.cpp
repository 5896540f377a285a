#include "core/weights/weight_load.hpp"

#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "core/base/error.hpp"

namespace ortmulti {
namespace {

std::vector<int> checked(std::vector<int> devices) {
  if (devices.empty()) {
    throw Error(ErrorKind::invalid_argument, "there is no device to load the weights to");
  }
  if (std::set<int>(devices.begin(), devices.end()).size() != devices.size()) {
    throw Error(ErrorKind::invalid_argument, "a device is named twice, and has the weights once");
  }
  return devices;
}

}  // namespace

WeightLoad::WeightLoad(CudaStartup& startup, const SharedWeights& weights, std::vector<int> devices)
    : loader_(startup, weights.plan, checked(std::move(devices)), weights.loader, weights.prefetch, nullptr,
              weights.fill) {
  startup.begin_contexts(loader_.devices());
  try {
    for (std::size_t i = 0; i < loader_.devices().size(); ++i) {
      threads_.emplace_back([this, i] { bring_up(i); });
    }
  } catch (const std::system_error& error) {
    stop();
    throw Error(
        ErrorKind::runtime_exception,
        "cannot start a thread for each of " + std::to_string(loader_.devices().size()) + " devices: " + error.what());
  }
}

WeightLoad::~WeightLoad() { stop(); }

void WeightLoad::bring_up(std::size_t index) noexcept {
  loader_.want(index);
  loader_.bring_up(index);
  const std::lock_guard lock(mutex_);
  ++finished_;
  done_.notify_all();
}

bool WeightLoad::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return done_.wait_for(lock, timeout, [this] { return finished_ == loader_.devices().size(); });
}

std::vector<std::shared_ptr<const CudaWeightStore>> WeightLoad::take() {
  std::vector<std::shared_ptr<const CudaWeightStore>> stores;
  for (std::size_t i = 0; i < loader_.devices().size(); ++i) {
    loader_.wait_filled(i);
    stores.push_back(loader_.allocated(i));
  }
  return stores;
}

void WeightLoad::stop() {
  loader_.stop();
  for (std::thread& thread : threads_) {
    thread.join();
  }
  threads_.clear();
}

}  // namespace ortmulti
