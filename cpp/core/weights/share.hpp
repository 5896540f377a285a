#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/descriptor.hpp"
#include "core/base/device.hpp"
#include "core/weights/plan.hpp"

// Weights on GPUs that the processes of one user have in common. Each process that has some offers them: in a folder of
// the user there is a socket for each offer, from which everybody who connects gets a descriptor of the memory. There
// is no other process, and nothing to clean up after one that was killed: the kernel closes what it had, and who finds
// its socket removes that.

namespace ortmulti {

/// The folder: $ORTMULTI_SHARE_DIR, else ortmulti in $XDG_RUNTIME_DIR, else /tmp/ortmulti-UID. Made if need be. Throws
/// Error with ErrorKind::fail unless it is a folder of this user's, which nobody else may enter.
std::string share_folder();

/// What tells these weights on this GPU from all others: a name for files. Throws Error with ErrorKind::fail, which
/// says why, for weights that no other process can know; with ErrorKind::weights for a file that is not as it was.
std::string share_key(const WeightPlan& plan, const CudaDeviceInfo& device, int driver_version);

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

/// The weights of a key that some process offers, if any. Removes the sockets of processes that have ended. Throws
/// Error with ErrorKind::fail.
std::optional<Offered> find_offer(const std::string& key);
/// Of every process, without their memory.
std::vector<Offered> all_offers();

/// Held by the one process that loads the weights of a key; the kernel releases it for one that was killed.
class ShareLock : NonCopyable {
 public:
  /// Throws Error with ErrorKind::fail.
  explicit ShareLock(const std::string& key);
  ~ShareLock();
  bool try_lock();

 private:
  std::string path_;
  Descriptor file_;
  bool locked_ = false;
};

}  // namespace ortmulti
