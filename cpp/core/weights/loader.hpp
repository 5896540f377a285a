#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
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

/// Weights that the sessions of one device use together.
struct SharedWeights {
  std::shared_ptr<const WeightPlan> plan;
  std::shared_ptr<Prefetch> prefetch;  ///< Null: nothing is read ahead.
  LoaderOptions loader;
  bool fill = true;    ///< Otherwise the weights' memory is only allocated: for sessions that never run.
  bool share = false;  ///< With the processes of this user; see share.hpp.
  /// Another process that loads them may make no progress for so long. Then this one loads them, too.
  std::chrono::milliseconds patience{60'000};
};

/// One plan's weights on several GPUs: read once, copied to the first device from pinned memory, and to the others from
/// the first as it fills. Devices that cannot reach the first copy from the same pinned memory. Has no threads of its
/// own but the readers: bring_up() is called from one for each device.
class WeightLoader {
 public:
  /// `devices` are different ones; the first is filled from the host. With `keep_going` a device that fails is left
  /// out: another takes its place as the one that is filled first.
  WeightLoader(CudaStartup& startup, SharedWeights weights, std::vector<int> devices,
               std::shared_ptr<Timeline> timeline, bool keep_going = false);

  /// Creates or joins the context of devices[index], allocates there and waits until the weights are there. What fails
  /// is thrown by allocated() and wait_filled(), and stops the other devices unless these keep going.
  void bring_up(std::size_t index) noexcept;

  /// Lets devices[index] be copied to from another device. Until then it is not: what CUDA is asked for on a device may
  /// wait for the copies to it, and so be asked for before. The calls that wait for the weights there do this too.
  void want(std::size_t index);
  /// Waits for the memory of devices[index], which may not be filled yet.
  std::shared_ptr<const CudaWeightStore> allocated(std::size_t index);
  void wait_filled(std::size_t index);
  /// The same without want(). False where they do not come.
  bool wait_until_filled(std::size_t index);

  /// Gives up: what waits throws the first error, or that it was stopped. May be called from any thread.
  void stop();

  const std::vector<int>& devices() const noexcept { return devices_; }
  std::size_t index_of(int device) const;
  std::uint64_t total_bytes() const noexcept { return total_bytes_; }
  /// Bytes on their way to the first device, or there.
  std::uint64_t copied_bytes() const;

 private:
  struct Slot {
    std::shared_ptr<CudaWeightStore> store;  // null: it is not allocated yet
    bool wanted = false;
    bool taken = false;  // being filled by its own thread, or by another's pass
    bool filled = false;
    bool alone = false;                      // a pass for several devices failed, of which any may be to blame
    std::exception_ptr error;                // it was left out
    std::shared_ptr<FillProgress> progress;  // of the pass that fills it; null where it is copied from a peer
    std::string key;                         // of weights that processes share
    std::optional<Offered> other;            // another process's, until it is mapped
    std::unique_ptr<ShareLock> lock;         // other processes wait for these
  };

  /// Finds the weights of other processes, and waits for those that load them now.
  void find_others() noexcept;
  void look_for_others();
  /// Asks for the weights of these. Returns those that nobody offers.
  static std::vector<Slot*> ask_others(const std::vector<Slot*>& slots);
  /// Waits for a process that loads the weights now. False where stop() ended it.
  bool lock(Slot& slot);
  /// Tells the processes that wait for this one that it goes on.
  void renew_locks();
  /// Uses another process's weights; false where that fails.
  bool map_other(std::size_t index, Offered& other) noexcept;
  void fill(std::size_t index, std::unique_ptr<WeightReader> reader);
  std::unique_ptr<WeightReader> new_reader(int device);
  /// False where a pass for several devices failed.
  bool read_to(std::size_t index, std::unique_ptr<WeightReader> reader);
  /// False where the pass that fills the source has failed.
  bool copy_from(std::size_t source, std::size_t index);
  /// Whether a pass for this device may begin: one at a time, the first that works before all others. With the mutex
  /// held, as the next.
  bool may_read(std::size_t index) const;
  /// A slot that is filled or being filled from the host, which `index` can copy from. With the mutex held.
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
  bool others_offer_ = false;  // for some of the devices, before any waits
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;
  bool reading_ = false;  // one pass at a time
  std::atomic<bool> stop_{false};
  std::exception_ptr error_;
  WeightReader* reader_ = nullptr;  // of the pass under way
};

/// A load of weights to several GPUs, with a thread for each of them.
class WeightLoad : NonCopyable {
 public:
  /// Starts the threads. Throws Error for no device, for one that is named twice, and where a thread cannot start.
  WeightLoad(CudaStartup& startup, const SharedWeights& weights, std::vector<int> devices);
  /// Gives up: waits until the threads have ended, at their next chunk.
  ~WeightLoad() { loader_.stop(); }

  /// Waits at most `timeout`; whether all threads are done.
  bool wait(std::chrono::milliseconds timeout) const;

  /// Waits, and returns the store of each device. Throws the first error of any device.
  std::vector<std::shared_ptr<const CudaWeightStore>> take();

 private:
  WeightLoader loader_;
  std::vector<std::future<void>> threads_;  // freed, they wait
};

}  // namespace ortmulti
