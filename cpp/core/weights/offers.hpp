#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/descriptor.hpp"
#include "core/base/non_copyable.hpp"

// How processes get each other's weights. Each process that has some offers them: in a folder of the user (share.hpp)
// there is a socket for each offer, from which everybody who connects gets a descriptor of the memory. There is no
// other process. The kernel closes what a killed one had; the next process removes its socket.

namespace ortmulti {

/// Weights that are offered.
struct Offered {
  std::string model;         ///< The file of the first weights.
  std::string device;        ///< The GPU's UUID.
  std::uint64_t bytes = 0;   ///< Of the GPU's memory.
  std::int64_t process = 0;  ///< That offers them.
  Descriptor memory{};
};

/// Offers weights until it goes.
class WeightOffer : NonCopyable {
 public:
  /// Throws Error with ErrorKind::fail.
  WeightOffer(const std::string& key, Offered weights);
  ~WeightOffer();

 private:
  const unsigned generation_;  // a forked child offers nothing of its parent's
  std::uint64_t id_ = 0;
  std::string path_;
};

/// The weights of each key that some process offers. Processes that do not answer are waited for together, for two
/// seconds. Throws Error with ErrorKind::fail.
std::vector<std::optional<Offered>> find_offers(const std::vector<std::string>& keys);
/// Of every process, without their memory.
std::vector<Offered> all_offers();
/// Removes what processes that were killed have left in the folder. Throws Error with ErrorKind::fail.
void remove_abandoned();

}  // namespace ortmulti
