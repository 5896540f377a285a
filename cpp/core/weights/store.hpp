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

/// Notes in the timeline, if there is one, why weights are not shared with other processes.
void note_not_shared(Timeline* timeline, const std::exception& problem) noexcept;

/// Whether the host keeps a pinned copy of sleeping weights. If there is no room for the copy, the sleep fails with
/// ErrorKind::out_of_memory, or with `if_possible` goes on without one.
enum class HostCopy { none, pinned, if_possible };

/// The host's pinned copy of a plan's weights, laid out as in a device's memory. All copies of a process together take
/// at most ORTMULTI_PINNED_BYTES; by default half of the host's memory.
class PinnedWeights : NonCopyable {
 public:
  /// Copies the weights from a device. Throws Error with ErrorKind::out_of_memory, which names the limit.
  PinnedWeights(CudaStartup& startup, const CudaWeightStore& store);
  ~PinnedWeights();

  void copy_to(const CudaWeightStore& store) const;

 private:
  /// Counts the bytes towards the limit for its lifetime.
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

/// A plan's weights in one allocation of a GPU's memory, except those in the plan's base. While they sleep, they have
/// an address and no memory.
class CudaWeightStore : public WeightStore, public std::enable_shared_from_this<CudaWeightStore> {
 public:
  /// Allocates, in the context of the device, which becomes current. Throws Error with ErrorKind::out_of_memory, which
  /// says how much memory there is; before it allocates, if that cannot suffice. `key`: share_key(), if processes share
  /// the weights; else empty. `other`: another process's weights, used in place.
  CudaWeightStore(CudaStartup& startup, int device, std::shared_ptr<const WeightPlan> plan, Timeline* timeline,
                  std::string key = {}, const Offered* other = nullptr);
  /// Offers the weights to other processes, once they are filled and before they are used. Nobody writes them from now
  /// on. The timeline says why they are not offered. `other`: the memory, if it is another process's.
  void share(Timeline* timeline, Descriptor other = {});
  /// Lets stores of the same plan wake from this one, once it is filled.
  void offer() const;

  const Device& device() const noexcept override { return device_; }
  void add_to(Ort::SessionOptions& options) const override;
  Hold hold() const override;  ///< With a base, holds the base.

  /// Whether it can sleep: the driver and the device have stable addresses, and the plan has no base.
  bool can_sleep() const noexcept { return memory_->stable(); }
  /// Gives the memory back once nobody holds it; false if somebody still does at `until`. If it throws Error, all is as
  /// before.
  bool sleep(HostCopy copy, std::chrono::steady_clock::time_point until);
  std::uint64_t sleeps() const noexcept { return sleeps_.load(); }
  /// Takes memory again and fills it from the best source: another device, the host's pinned copy, or the files. If it
  /// throws Error, the weights sleep on.
  void wake(Timeline* timeline);

  std::uint64_t device_bytes() const noexcept override { return memory_->taken(); }
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
  mutable std::shared_mutex in_use_;  // exclusive for sleep and wake
  bool asleep_ = false;
  std::atomic<std::uint64_t> sleeps_{0};
  std::string key_;
  std::unique_ptr<WeightOffer> offer_;
  std::shared_ptr<const PinnedWeights> pinned_;
  std::shared_ptr<KeptBuffers> buffers_;    // after it was read again
  mutable std::vector<Ort::Value> values_;  // made at the first add_to(): they need ONNX Runtime, memory does not
  mutable std::once_flag values_made_;
};

class HostWeightStore : public WeightStore {
 public:
  /// `memory`: from in_memory() of the list.
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
