#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>
#include <string>

#include "core/base/descriptor.hpp"
#include "core/base/non_copyable.hpp"
#include "core/cuda/startup.hpp"
#include "core/weights/plan.hpp"

// Weights on GPUs that the processes of one user have in common: the folder where they meet, the names of weights
// there, and who loads them. offers.hpp is how they get them.

namespace ortmulti {

/// The folder: $ORTMULTI_SHARE_DIR, else ortmulti in $XDG_RUNTIME_DIR, else /tmp/ortmulti-UID. Made if need be. Throws
/// Error with ErrorKind::fail unless it is a folder of this user's, which nobody else may enter.
std::string share_folder();
bool share_folder_exists();

/// Throws Error with ErrorKind::fail: what failed, and why, as errno says.
[[noreturn]] void throw_system_error(const std::string& what);

/// 16 digits, for names.
std::string hexadecimal(std::uint64_t number);

/// What tells these weights on this GPU from all others: a name for files. It contains the files' identities and a
/// sample of their bytes. Throws Error with ErrorKind::fail, which says why, for weights that no other process can
/// know; with ErrorKind::weights for a file that is not as it was.
std::string share_key(const WeightPlan& plan, const CudaDeviceInfo& device, int driver_version);

/// Held by the one process that loads the weights of a key; the kernel releases it for one that was killed.
class ShareLock : NonCopyable {
 public:
  /// Throws Error with ErrorKind::fail.
  explicit ShareLock(const std::string& key);
  ~ShareLock();
  /// False where another process has it. Throws Error with ErrorKind::fail where there are no locks.
  bool try_lock();

  /// The one that has it says now and then that its load goes on.
  void renew() const noexcept;
  /// How long it has not said so, seen from here, after a try_lock() that has failed.
  std::chrono::steady_clock::duration silence() const { return std::chrono::steady_clock::now() - seen_; }
  /// Takes the lock from the process that has it, for the next try_lock() of any process. False where others were
  /// faster.
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
