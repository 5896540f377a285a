#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "core/base/timeline.hpp"
#include "core/cuda/startup.hpp"
#include "core/weights/offers.hpp"
#include "core/weights/plan.hpp"
#include "core/weights/prefetch.hpp"
#include "core/weights/reader.hpp"
#include "core/weights/share.hpp"
#include "core/weights/store.hpp"

namespace ortmulti {

/// Weights that the sessions of a device share, and how they are loaded.
struct SharedWeights {
  std::shared_ptr<const WeightPlan> plan;
  std::shared_ptr<Prefetch> prefetch;  ///< Null: nothing is read ahead.
  LoaderOptions loader;
  bool fill = true;    ///< Else memory is only allocated: for sessions that never run.
  bool share = false;  ///< With this user's processes; see share.hpp.
  /// After so long without progress of another process that loads the weights, this one loads them, too.
  std::chrono::milliseconds patience{60'000};
};

/// Loads one plan's weights to several GPUs. It reads them once, copies them to the first device from pinned memory,
/// and to the others from the first as it fills. Devices that cannot reach the first one copy from the same pinned
/// memory. Its only threads are the readers; the caller calls bring_up() from one thread for each device.
class WeightLoader {
 public:
  /// `devices` are different; the first is filled from the host. With `keep_going`, a failed device is left out, and if
  /// it was the first, another one is filled first.
  WeightLoader(CudaStartup& startup, SharedWeights weights, std::vector<int> devices,
               std::shared_ptr<Timeline> timeline, bool keep_going = false);

  /// Creates or joins the context of devices[index], allocates there and waits until the weights are there. allocated()
  /// and wait_filled() throw its errors, which also stop the other devices unless `keep_going` is set.
  void bring_up(std::size_t index) noexcept;

  /// Allows copies from another device to devices[index]. They do not begin before, since other CUDA calls on the
  /// device may have to wait for them. The calls that wait for the weights allow them, too.
  void want(std::size_t index);
  /// Waits for the memory of devices[index], which may not be filled yet.
  std::shared_ptr<const CudaWeightStore> allocated(std::size_t index);
  void wait_filled(std::size_t index);
  /// The same without want(). False if the weights will not come.
  bool wait_until_filled(std::size_t index);

  /// Gives up. Waiting calls throw the first error, or that loading was stopped. May be called from any thread.
  void stop();

  const std::vector<int>& devices() const noexcept { return devices_; }
  std::size_t index_of(int device) const;
  std::uint64_t total_bytes() const noexcept { return total_bytes_; }
  /// Bytes that are on the first device, or on their way.
  std::uint64_t copied_bytes() const;

 private:
  struct Slot {
    std::shared_ptr<CudaWeightStore> store;  // null: not allocated yet
    bool wanted = false;
    bool taken = false;  // its own thread, or another one's pass, fills it
    bool filled = false;
    bool alone = false;                      // a pass for several devices failed, so it is tried alone
    std::exception_ptr error;                // why it was left out
    std::shared_ptr<FillProgress> progress;  // of the pass that fills it; null: a peer is copied
    std::string key;                         // of weights that processes share; empty: they do not
    std::optional<Offered> other;            // of another process, until they are mapped
    std::unique_ptr<ShareLock> lock;         // held while other processes wait for these weights
  };

  /// Finds the weights of other processes, and waits for those that load them now.
  void find_others() noexcept;
  void look_for_others();
  /// Asks other processes for the weights of these slots. Returns the slots whose weights nobody offers.
  static std::vector<Slot*> ask_others(const std::vector<Slot*>& slots);
  /// Takes the slot's lock; waits for a process that loads the weights now. False after stop().
  bool lock(Slot& slot);
  /// Tells waiting processes that this load goes on.
  void renew_locks();
  /// Uses another process's weights; false if that fails.
  bool map_other(std::size_t index, Offered& other) noexcept;
  void fill(std::size_t index, std::unique_ptr<WeightReader> reader);
  std::unique_ptr<WeightReader> new_reader(int device);
  /// Fills devices by a pass over the sources. False if a pass for several devices failed.
  bool read_to(std::size_t index, std::unique_ptr<WeightReader> reader);
  /// Copies from a device that is filled, or fills. False if the pass that fills it failed.
  bool copy_from(std::size_t source, std::size_t index);
  /// Whether a pass for this device may begin: one at a time, and the first working device before all others. Needs the
  /// mutex, as does the next function.
  bool may_read(std::size_t index) const;
  /// Finds a slot that `index` can copy from: filled, or being filled from the host.
  std::size_t find_source(std::size_t index);
  void fail(std::size_t index, std::exception_ptr error);
  [[noreturn]] void throw_stopped(std::size_t index);

  CudaStartup& startup_;
  SharedWeights weights_;
  std::vector<int> devices_;
  std::shared_ptr<Timeline> timeline_;
  bool keep_going_;
  std::uint64_t total_bytes_;
  std::vector<bool> context_was_there_;

  std::once_flag others_found_;
  bool others_offer_ = false;  // other processes offer weights of some devices, before any wait
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;
  bool reading_ = false;  // one pass at a time
  std::stop_source stop_;
  std::exception_ptr error_;
  WeightReader* reader_ = nullptr;  // of the pass under way
};

}  // namespace ortmulti
