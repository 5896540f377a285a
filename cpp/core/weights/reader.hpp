#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "core/base/timeline.hpp"
#include "core/cuda/memory.hpp"
#include "core/cuda/startup.hpp"
#include "core/weights/plan.hpp"
#include "core/weights/prefetch.hpp"
#include "core/weights/store.hpp"

namespace ortmulti {

/// Keeps the pinned buffers of a pass for later passes: pinning took half as long as a pass over 400 MB on an H200.
/// Freed with the last store that may need them.
class KeptBuffers : NonCopyable {
 public:
  /// The process's object. `device` has a context.
  static std::shared_ptr<KeptBuffers> instance(CudaStartup& startup, int device);

  KeptBuffers(CudaStartup& startup, int device) : startup_(startup), device_(device) {}
  ~KeptBuffers();

  /// Null: there are none of this size.
  std::unique_ptr<PinnedBuffers> take(std::uint64_t each, int count);
  void give_back(std::unique_ptr<PinnedBuffers> buffers);

 private:
  CudaStartup& startup_;
  int device_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<PinnedBuffers>> all_;
};

/// How sources are read. 0: chosen for the machine.
struct LoaderOptions {
  int reader_threads = 0;
  std::uint64_t chunk_bytes = 0;  ///< Bytes that a thread reads at once.
  int buffers_per_thread = 0;     ///< Pinned, for one chunk each. One is read into while others are copied.
  std::shared_ptr<KeptBuffers> kept = nullptr;  ///< Null: buffers are made for one pass.
  std::function<void()> each_chunk = {};        ///< The threads call it after each chunk; may be empty.
};

/// The progress of a pass over the sources. Threads wait here for parts of the slab.
class FillProgress {
 public:
  explicit FillProgress(std::vector<std::uint64_t> job_ends) : ends_(std::move(job_ends)), done_(ends_.size()) {}

  void job_done(std::size_t job);
  /// Waits until the slab is filled to `above` + `step`, or to its end; returns how far it is filled. Returns `above`
  /// after a request to stop, and after abandon().
  std::uint64_t wait_beyond(std::uint64_t above, std::uint64_t step, const std::stop_token& stop);
  /// The pass has failed.
  void abandon();

 private:
  std::mutex mutex_;
  std::condition_variable_any advanced_;
  std::vector<std::uint64_t> ends_;
  std::vector<bool> done_;
  std::size_t prefix_ = 0;  // jobs that are done, up to the first gap
  bool abandoned_ = false;
};

/// One pass over the sources of a plan. Threads read them in order into pinned buffers, from which every target copies.
/// The threads start at once. They read the first chunks while the context of `device`, that of the first target, is
/// being created, and then pin their buffers.
class WeightReader : NonCopyable {
 public:
  WeightReader(CudaStartup& startup, int device, std::shared_ptr<const WeightPlan> plan, const LoaderOptions& options,
               std::shared_ptr<Prefetch> prefetch, std::vector<int> cpus, Timeline* timeline);
  ~WeightReader();  ///< Abandons, and waits for the threads.

  /// Copies everything to the targets, and returns true when it is there. False after abandon(). Throws the first Error
  /// of a thread.
  bool fill(const std::vector<std::shared_ptr<CudaWeightStore>>& targets);
  /// The threads end at their next chunk. May be called from any thread.
  void abandon() { stop_.request_stop(); }

  const std::shared_ptr<FillProgress>& progress() const noexcept { return progress_; }
  std::uint64_t copied_bytes() const noexcept { return copied_.load(std::memory_order_relaxed); }

 private:
  class Copies;

  void run();
  void read_jobs();
  void read(const WeightJob& job, unsigned char* buffer) const;

  CudaStartup& startup_;
  int device_;
  std::shared_ptr<const WeightPlan> plan_;
  LoaderOptions options_;
  std::shared_ptr<Prefetch> prefetch_;
  std::vector<int> cpus_;
  Timeline* timeline_;
  std::vector<WeightJob> jobs_;
  std::vector<std::shared_ptr<const InputFile>> open_;  // those of the list, for many reads
  std::shared_ptr<FillProgress> progress_;
  std::atomic<std::size_t> next_job_{0};
  std::atomic<std::uint64_t> copied_{0};

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<std::shared_ptr<CudaWeightStore>> targets_;
  std::stop_source stop_;  // abandoned, or a thread has failed
  std::exception_ptr error_;
  std::vector<std::jthread> threads_;  // end first
};

}  // namespace ortmulti
