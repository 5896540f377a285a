#pragma once

#include <onnxruntime_cxx_api.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "core/cuda/memory.hpp"
#include "core/cuda/startup.hpp"
#include "core/onnx/weight_list.hpp"
#include "core/ort/weight_use.hpp"
#include "core/weights/offers.hpp"
#include "core/weights/plan.hpp"

namespace ortmulti {

class KeptBuffers;

/// Says in a timeline, if there is one, what keeps other processes from weights.
void note_not_shared(Timeline* timeline, const std::exception& problem) noexcept;

/// Whether the host keeps a pinned copy of weights that sleep. The copy may be refused: then the sleep fails with
/// ErrorKind::out_of_memory, or goes on without one.
enum class HostCopy { none, pinned, if_possible };

/// The host's pinned copy of a plan's weights, as they lie in a device's memory. All copies of a process together take
/// at most as much as ORTMULTI_PINNED_BYTES says; by default half of the host's memory.
class PinnedWeights : NonCopyable {
 public:
  /// Copies them from a device. Throws Error with ErrorKind::out_of_memory, which says how much there may be.
  PinnedWeights(CudaStartup& startup, const CudaWeightStore& store);
  ~PinnedWeights();

  void copy_to(const CudaWeightStore& store) const;

 private:
  /// Counts the bytes for its lifetime.
  struct Share : NonCopyable {
    explicit Share(std::uint64_t wanted);
    ~Share();
    const std::uint64_t bytes;
  };

  CudaStartup& startup_;
  const int device_;
  const Share share_;
  std::unique_ptr<PinnedBuffers> memory_;
};

/// The weights of a plan in one allocation of a GPU's memory, but for those in the plan's base. Asleep, they have an
/// address and no memory.
class CudaWeightStore : public WeightStore, public std::enable_shared_from_this<CudaWeightStore> {
 public:
  /// Allocates, in the context of the device, which is made current. Throws Error with ErrorKind::out_of_memory, which
  /// says how much there is, before anything is allocated where it cannot suffice.
  /// `key`: share_key() of weights that processes share; empty: of others. `other`: those of another process, which are
  /// used as they are.
  CudaWeightStore(CudaStartup& startup, int device, std::shared_ptr<const WeightPlan> plan, Timeline* timeline,
                  std::string key = {}, const Offered* other = nullptr);
  /// Once it is filled and before it is used: nobody writes it from now on, and other processes may use it. What keeps
  /// them from it is in the timeline. `other`: its memory, where that is another process's.
  void share(Timeline* timeline, Descriptor other = {});
  /// Once it is filled: stores of the same plan may wake from it.
  void offer() const;

  const Device& device() const noexcept override { return device_; }
  void add_to(Ort::SessionOptions& options) const override;
  Hold hold() const override;  ///< With a base: the base's.

  /// Whether it can sleep: the driver and the device have stable addresses, and the plan has no base.
  bool can_sleep() const noexcept { return memory_->stable(); }
  /// Gives the memory back once nobody holds it: false where somebody does at `until`. Throws Error, with everything as
  /// before.
  bool sleep(HostCopy copy, std::chrono::steady_clock::time_point until);
  std::uint64_t sleeps() const noexcept { return sleeps_.load(); }
  /// Has the memory and what was in it again, from the best source: another device that has it, the host's pinned copy,
  /// the files. Throws Error, and sleeps on.
  void wake(Timeline* timeline);

  const WeightPlan& plan() const noexcept { return *plan_; }
  CUcontext context() const noexcept { return memory_->context(); }
  CUdeviceptr slab() const noexcept { return memory_->address(); }
  CUdeviceptr address(std::size_t weight) const;

 private:
  bool take_from_process(Timeline* timeline);
  bool copy_from_peer(Timeline* timeline) const;
  void read_files(Timeline* timeline);
  void check_sample() const;  ///< A file may have been written anew with its old size and time.

  CudaStartup& startup_;
  Device device_;
  std::shared_ptr<const WeightPlan> plan_;
  std::unique_ptr<CudaMemory> memory_;
  mutable std::shared_mutex in_use_;  // exclusive to sleep and to wake up
  bool asleep_ = false;
  std::atomic<std::uint64_t> sleeps_{0};
  std::string key_;
  std::unique_ptr<WeightOffer> offer_;
  std::shared_ptr<const PinnedWeights> pinned_;
  std::shared_ptr<KeptBuffers> buffers_;    // once it was read again
  mutable std::vector<Ort::Value> values_;  // made at the first add_to(): they need ONNX Runtime, memory does not
  mutable std::once_flag values_made_;
};

class HostWeightStore : public WeightStore {
 public:
  /// `memory` is what in_memory() returns for the list.
  HostWeightStore(WeightList list, HostMemory memory);

  const Device& device() const noexcept override { return device_; }
  void add_to(Ort::SessionOptions& options) const override;

 private:
  Device device_ = Device::cpu();
  WeightList list_;
  HostMemory memory_;
  std::vector<Ort::Value> values_;
};

}  // namespace ortmulti
