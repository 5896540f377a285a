#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/descriptor.hpp"
#include "core/base/non_copyable.hpp"

// How processes get each other's weights. A process that has weights offers them at a socket in a folder of the user
// (share.hpp). Each process that connects gets a descriptor of the memory. There is no server process. The kernel
// closes the descriptors of a killed process; the next process removes its socket.

namespace ortmulti {

/// Weights that a process offers.
struct Offered {
  std::string model;         ///< The file of the first weights.
  std::string device;        ///< The GPU's UUID.
  std::uint64_t bytes = 0;   ///< Bytes of the GPU's memory.
  std::int64_t process = 0;  ///< The process that offers them.
  Descriptor memory{};
};

/// Offers weights as long as it lives.
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

/// Asks other processes for the weights of each key. Waits at most two seconds for all processes together that do not
/// answer. Throws Error with ErrorKind::fail.
std::vector<std::optional<Offered>> find_offers(const std::vector<std::string>& keys);
/// The offers of all processes, without their memory.
std::vector<Offered> all_offers();
/// Removes what killed processes have left in the folder. Throws Error with ErrorKind::fail.
void remove_abandoned();

}  // namespace ortmulti
