#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/base/device.hpp"
#include "core/base/timeline.hpp"
#include "core/cuda/driver.hpp"

namespace ortmulti {

/// The one owner of cuInit, of the primary contexts and of opening the CUDA libraries. Whoever needs a device asks
/// here and joins what another thread has begun. Contexts are created one after another: the driver's lock does so
/// anyway, and the first one is then there before the last is begun. They stay for the life of the process.
class CudaStartup : NonCopyable {
 public:
  /// The machine's driver. `sysfs` tells a machine without GPUs from one whose driver is broken.
  static CudaStartup& instance();

  explicit CudaStartup(const CudaDriver* driver, std::string no_driver_reason, std::string sysfs = "/sys");
  ~CudaStartup() { join(); }

  /// Begins to open CUDA libraries in a thread of its own, in this order: those that the CUDA provider is linked to,
  /// then those that it opens by name at its first need. `then` is called once the linked ones are open; what it throws
  /// is dropped. Only the first call does anything.
  void begin_opening(std::vector<std::string> linked, std::vector<std::string> opened_later,
                     std::function<void()> then = {});

  /// Waits until the linked ones are open. Throws Error with ErrorKind::library if one cannot be opened.
  void wait_for_libraries(Timeline* timeline);

  /// Returns at once: cuInit and then the contexts of these devices, in this order, are under way in a thread of this
  /// object; of all devices without a list. What fails there is reported to whoever asks for it.
  void begin_contexts(const std::optional<std::vector<int>>& devices);

  /// While one exists, only its device's context is created in the background. For the one that makes contexts keeps
  /// the driver's lock, so that what is done on the first GPU meanwhile would hardly come on until all are there.
  class Hold : NonCopyable {
   public:
    Hold(CudaStartup& startup, int device);
    ~Hold() { release(); }
    /// From any thread; the first call does it.
    void release();

   private:
    CudaStartup& startup_;
    const int device_;
    const unsigned generation_;  // a forked child has none of its parent's
    std::atomic<bool> released_{false};
  };

  /// Waits for the threads of this object: before the process ends, since they must not outlive it.
  void join();

  /// How many CUDA devices this process sees: 0 without NVIDIA hardware, or where CUDA_VISIBLE_DEVICES hides all of it.
  /// Throws where there is hardware and its driver does not work, and in a child forked after CUDA was started.
  int device_count(Timeline* timeline = nullptr);

  /// Returns the device's primary context, without a lock if it is there. Otherwise waits for it if begin_contexts()
  /// will create it, or creates it. Throws Error with ErrorKind::device for a device that does not exist or does not
  /// start.
  CUcontext context(int device, Timeline* timeline = nullptr);
  CUcontext make_current(int device, Timeline* timeline = nullptr);
  /// Makes a context current in the calling thread, and returns the one that was. Does nothing if it is current.
  CUcontext exchange_current(CUcontext context, int device);
  bool has_context(int device) const { return find_context(device) != nullptr; }

  CudaDeviceInfo describe(int device);
  bool can_access_peer(int device, int peer);
  /// The functions, once something was started with them; throws where there is no driver.
  const CudaDriver& driver() const;
  /// Throws where `result` is an error: out_of_memory or device, with `what` failed.
  void check(CUresult result, std::string_view what) const;
  struct Memory {
    std::size_t free = 0;  ///< Bytes.
    std::size_t total = 0;
  };
  Memory memory(int device);
  /// Gives back what the driver keeps of the memory that graphs allocated, of those that are freed.
  void trim_graph_memory(int device) noexcept;

  /// Keeps a span of what was begun before there was a timeline. The first timeline takes it.
  void remember(Span span);

  /// The driver's CUDA version, 13000 for 13.0; nothing without a driver. Does not start CUDA.
  std::optional<int> driver_version() const;
  /// Why there is no driver; empty where there is one.
  const std::string& driver_problem() const noexcept { return no_driver_reason_; }
  bool started() const noexcept { return started_.load(); }

 private:
  /// Throws where what was started under this generation belongs to a parent process.
  static void check_fork(unsigned generation);
  void initialize(Timeline* timeline);
  CUdevice handle(int device);
  void create_queued_contexts();
  /// The next of the queue that may be created. Under contexts_mutex_.
  std::deque<int>::iterator next_queued();
  CUcontext create_context(int device, Timeline* timeline);
  CUcontext wait_for_context(int device, Timeline* timeline);
  CUcontext find_context(int device) const;

  const CudaDriver* driver_;
  std::string no_driver_reason_;
  std::string sysfs_;

  std::mutex initialize_mutex_;
  std::atomic<bool> started_{false};
  std::atomic<unsigned> started_generation_{0};
  bool initialized_ = false;
  CUresult initialize_result_ = CUDA_SUCCESS;
  int device_count_ = 0;

  void hand_over(Timeline* timeline);
  std::mutex spans_mutex_;
  std::vector<Span> spans_;

  std::mutex creating_context_;  // held by the one that creates a context; taken before contexts_mutex_
  mutable std::mutex contexts_mutex_;
  std::condition_variable context_created_;
  static constexpr std::size_t max_devices = 64;
  std::array<std::atomic<CUcontext>, max_devices> contexts_{};  // written under contexts_mutex_
  std::deque<int> queued_;                                      // whose contexts the starter creates
  std::multiset<int> held_for_;                                 // the holds' devices
  std::condition_variable queue_moves_;                         // for the starter
  bool all_queued_ = false;                                     // it has still to ask how many there are
  bool starter_running_ = false;                                // until it finds nothing more to do
  std::atomic<bool> starting_{false};
  std::atomic<unsigned> starting_generation_{0};
  std::jthread starter_;

  void open_libraries(const std::vector<std::string>& linked, const std::vector<std::string>& opened_later,
                      const std::function<void()>& then);

  std::mutex libraries_mutex_;
  std::condition_variable linked_opened_;
  std::atomic<bool> opening_{false};
  std::atomic<unsigned> opening_generation_{0};
  bool opened_ = false;
  std::string library_problem_;
  std::jthread opener_;
};

}  // namespace ortmulti
