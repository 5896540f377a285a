#include "core/weights/weight_load.hpp"

#include <algorithm>
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
    : loader_(startup, weights, checked(std::move(devices)), nullptr) {
  startup.begin_contexts(loader_.devices());
  try {
    for (std::size_t i = 0; i < loader_.devices().size(); ++i) {
      threads_.push_back(std::async(std::launch::async, [this, i] {
        loader_.want(i);
        loader_.bring_up(i);
      }));
    }
  } catch (const std::system_error& error) {
    loader_.stop();
    throw Error(
        ErrorKind::runtime_exception,
        "cannot start a thread for each of " + std::to_string(loader_.devices().size()) + " devices: " + error.what());
  }
}

bool WeightLoad::wait(std::chrono::milliseconds timeout) const {
  const auto until = std::chrono::steady_clock::now() + timeout;
  return std::ranges::all_of(
      threads_, [until](const auto& thread) { return thread.wait_until(until) == std::future_status::ready; });
}

std::vector<std::shared_ptr<const CudaWeightStore>> WeightLoad::take() {
  std::vector<std::shared_ptr<const CudaWeightStore>> stores;
  for (std::size_t i = 0; i < loader_.devices().size(); ++i) {
    loader_.wait_filled(i);
    stores.push_back(loader_.allocated(i));
  }
  return stores;
}

}  // namespace ortmulti
