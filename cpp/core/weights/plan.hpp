#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/base/device.hpp"
#include "core/onnx/weight_list.hpp"

namespace ortmulti {

/// A stretch of a source that goes, as it is, to a stretch of the slab.
struct WeightPiece {
  std::size_t source = 0;  ///< Index in WeightList::sources.
  std::uint64_t offset = 0;
  std::uint64_t slab_offset = 0;
  std::uint64_t length = 0;
};

/// Pieces that are read together: the next of the source, at most as many bytes as were asked for.
struct WeightJob {
  std::vector<WeightPiece> pieces;
  std::uint64_t bytes = 0;
  std::uint64_t slab_end = 0;  ///< Where its part of the slab ends; that of the next job begins there or later.
};

class CudaWeightStore;
class PinnedWeights;

/// What the stores of one plan have in common.
struct WeightFamily {
  std::mutex mutex;
  std::vector<std::weak_ptr<const CudaWeightStore>> stores;
  std::weak_ptr<const PinnedWeights> pinned;
  std::vector<std::string> sample;  ///< sample_of() the list as it was loaded; empty: not known.
};

/// Where each weight lies in a device's memory. The slab has the order of the sources, so that reading these from
/// front to back fills it from front to back.
struct WeightPlan {
  static constexpr std::uint64_t alignment = 256;  ///< Bytes; what CUDA's own allocations have.

  WeightList list;
  std::shared_ptr<const CudaWeightStore> base;      ///< Weights that are on a device already; null: none.
  std::vector<std::optional<std::size_t>> in_base;  ///< Of each of list.weights: which of the base's it is.
  std::vector<std::uint64_t> slab_offsets;          ///< Of each of list.weights that is not the base's.
  std::uint64_t slab_bytes = 0;
  std::vector<WeightPiece> runs;  ///< Without overlaps; both offsets ascend within a source.
  std::shared_ptr<WeightFamily> family = std::make_shared<WeightFamily>();

  std::uint64_t file_bytes() const noexcept;  ///< What is read.
  /// With `separate` each job has one piece.
  std::vector<WeightJob> jobs(std::uint64_t max_bytes, bool separate = false) const;
  /// Throws Error with ErrorKind::invalid_argument for a device that the base is not on.
  void check_device(const Device& device) const;
};

/// Weights with the same bytes of a source get one place. Throws Error with ErrorKind::out_of_memory where a sum
/// exceeds 64 bits; the sums of the plan's own parts are then within slab_bytes. `base` is filled: a weight that it
/// has, of the same bytes, type and shape under any name, is used there. Such a plan is for the base's device alone.
WeightPlan plan_weights(WeightList list, std::shared_ptr<const CudaWeightStore> base = nullptr);

/// Of each source that is a file, a sample of the weights' bytes. It tells files apart that have the same size and
/// times: those of read-only images, and those that were written anew where there is no time of the last change.
std::vector<std::string> sample_of(const WeightList& list);

/// Each weight's bytes in the host's memory.
using HostMemory = std::vector<std::shared_ptr<const unsigned char>>;

/// Uses the bytes where their sources have them: every process shares the page cache's copy of a file. Those of other
/// sources are read, each once, by several threads. Asks `stopped` now and then meanwhile, and counts the bytes in
/// `read`. Throws Error: with ErrorKind::closed after that, with ErrorKind::weights as sources do, and for a weight
/// that does not lie within its source.
HostMemory in_memory(const WeightList& list, const std::function<bool()>& stopped,
                     std::atomic<std::uint64_t>* read = nullptr);

/// The same weights, whose sources are in memory.
WeightList read_to_memory(const WeightList& list, const std::function<bool()>& stopped,
                          std::atomic<std::uint64_t>* read = nullptr);

/// How the sources of a list are read best together.
Reading reading_of(const WeightList& list) noexcept;
void interrupt(const WeightList& list) noexcept;

/// Threads that read files: measured on 16 and 64 cores with an H200 each; see docs/loading.md.
int threads_for_files();

}  // namespace ortmulti
