#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>
#include <string>

#include "core/base/descriptor.hpp"
#include "core/base/non_copyable.hpp"
#include "core/cuda/startup.hpp"
#include "core/weights/plan.hpp"

// Weights on GPUs that processes of one user share: their folder, the names of weights in it, and which process loads
// them. offers.hpp is how processes get them.

namespace ortmulti {

/// The folder: $ORTMULTI_SHARE_DIR, else ortmulti in $XDG_RUNTIME_DIR, else /tmp/ortmulti-UID. Made if need be. Throws
/// Error with ErrorKind::fail unless it is a folder of this user's, which nobody else may enter.
std::string share_folder();
bool share_folder_exists();

/// Throws Error with ErrorKind::fail, with errno's reason.
[[noreturn]] void throw_system_error(const std::string& what);

/// Writes the number as 16 digits.
std::string hexadecimal(std::uint64_t number);

/// A file name for these weights on this GPU, unlike that of all others. It depends on the files' identities and on a
/// sample of their bytes. Throws Error with ErrorKind::fail, and the reason, for weights that no other process can
/// know; with ErrorKind::weights for a changed file.
std::string share_key(const WeightPlan& plan, const CudaDeviceInfo& device, int driver_version);

/// The lock of the one process that loads a key's weights. The kernel releases the lock of a killed process.
class ShareLock : NonCopyable {
 public:
  /// Throws Error with ErrorKind::fail.
  explicit ShareLock(const std::string& key);
  ~ShareLock();
  /// False if another process has it. Throws Error with ErrorKind::fail if the file system has no locks.
  bool try_lock();

  /// The owner calls it now and then, to say that its load goes on.
  void renew() const noexcept;
  /// How long the owner has not renewed it, after a failed try_lock().
  std::chrono::steady_clock::duration silence() const { return std::chrono::steady_clock::now() - seen_; }
  /// Takes the lock from its owner, for the next try_lock() of any process. False if another process was faster.
  bool take_away();

 private:
  bool is_there() const;
  void note_renewal();

  std::string path_;
  Descriptor file_;
  bool locked_ = false;
  timespec renewed_{};
  std::chrono::steady_clock::time_point seen_;
};

}  // namespace ortmulti
