#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/device.hpp"
#include "core/base/mutex.hpp"
#include "core/base/non_copyable.hpp"
#include "core/pool/pool.hpp"
#include "core/repository/footprint.hpp"
#include "core/repository/repository.hpp"

namespace ortmulti {

/// One model of a repository with its residents, one on each of its devices. It reserves their memory before the load,
/// measures what the load took, and releases all of it.
///
/// reserve() and enter() wait, one after the other; release() may come from another thread, and ends them. Its lock is
/// taken before the repository's, and no pool is called under it.
class Tenant : NonCopyable {
 public:
  Tenant(std::shared_ptr<Repository> repository, std::string name, const std::vector<Device>& devices,
         const ModelFiles& files);
  ~Tenant();

  /// Waits until each device has room for what the model is expected to take. Throws Error with
  /// ErrorKind::out_of_memory, or with ErrorKind::closed after release().
  void reserve();

  /// Has the repository manage a model that was loaded and has run once, in place of the reservations: `loaded` but for
  /// its name, device and copy. On a GPU the model sleeps then, and what it keeps is measured. `seconds`: that the load
  /// took. Throws Error, as Pool::sleep() does; then release() is to come.
  void enter(const Repository::Resident& loaded, double seconds, bool pinned, bool protect);

  void pin(bool pinned);
  /// Whether the host keeps a pinned copy of its weights.
  bool keeps_copy() const;
  /// Gives all of its memory back to the budgets. Wakes of it that wait for room fail.
  void release();

 private:
  struct Place {
    Device device;
    Footprint footprint;
    Repository::Handle reserved;
    std::optional<UncountedMemory> before;
  };

  Repository::Handle keep(Repository::Handle resident);
  std::optional<UncountedMemory> uncounted(const Device& device) const;
  /// By how many bytes those in use have grown that nobody counts; none where nobody can tell.
  std::optional<std::int64_t> grown(const Place& place) const;
  /// Puts it to sleep, and takes note of what it keeps.
  void measure_sleep(const Footprint& footprint, Pool& pool, const Repository::Handle& resident,
                     const Footprint::Levels& levels, bool copies);
  /// Returns whether there is a pinned copy then. Throws Error with ErrorKind::not_implemented.
  bool sleep(Pool& pool, const Repository::Handle& resident, SleepLevel level, bool copies);
  void count_copy(std::uint64_t bytes);

  const std::shared_ptr<Repository> repository_;
  const std::string name_;
  std::vector<Place> places_;  // of the thread that reserves or enters
  mutable Mutex mutex_;
  std::vector<Repository::Handle> residents_ ORTMULTI_GUARDED_BY(mutex_);
  std::uint64_t copied_ ORTMULTI_GUARDED_BY(mutex_) = 0;  // bytes of the pinned copy, which all devices share
  bool released_ ORTMULTI_GUARDED_BY(mutex_) = false;
};

}  // namespace ortmulti
