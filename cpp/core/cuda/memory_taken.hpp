#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "core/base/device.hpp"
#include "core/base/error.hpp"
#include "core/cuda/startup.hpp"

namespace ortmulti {

/// Measures what is taken of GPUs' memory from now on, by this process and others: the driver does not tell them apart.
/// None for another device, or a broken one, which its pool reports. Throws Error.
inline std::function<std::optional<std::uint64_t>(const Device&)> memory_taken_from_now(
    CudaStartup& startup, const std::vector<Device>& devices) {
  std::map<int, std::uint64_t> free;
  for (const Device& device : devices) {
    if (device.is_cuda()) {
      free[device.index] = startup.memory(device.index).free;
    }
  }
  return [&startup, free](const Device& device) -> std::optional<std::uint64_t> {
    const auto before = device.is_cuda() ? free.find(device.index) : free.end();
    if (before == free.end()) {
      return std::nullopt;
    }
    try {
      return before->second - std::min<std::uint64_t>(before->second, startup.memory(device.index).free);
    } catch (const Error&) {
      return std::nullopt;
    }
  };
}

}  // namespace ortmulti
