#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "core/base/device.hpp"
#include "core/onnx/weight_list.hpp"

namespace ortmulti {

/// A range of a source, and the range of the slab that it is copied to.
struct WeightPiece {
  std::size_t source = 0;  ///< Index in WeightList::sources.
  std::uint64_t offset = 0;
  std::uint64_t slab_offset = 0;
  std::uint64_t length = 0;
};

/// Pieces that are read together, up to a number of bytes.
struct WeightJob {
  std::vector<WeightPiece> pieces;
  std::uint64_t bytes = 0;
  std::uint64_t slab_end = 0;  ///< The end of its part of the slab; the next job's part begins there or later.
};

class CudaWeightStore;
class PinnedWeights;

/// What the stores of one plan share.
struct WeightFamily {
  std::mutex mutex;
  std::vector<std::weak_ptr<const CudaWeightStore>> stores;
  std::weak_ptr<const PinnedWeights> pinned;
  std::vector<std::string> sample;  ///< sample_of() the list when it was loaded; empty: unknown.
};

/// Where each weight lies in a device's memory, the slab. Reading the sources from front to back fills it from front to
/// back.
struct WeightPlan {
  static constexpr std::uint64_t alignment = 256;  ///< Bytes, as CUDA's own allocations.

  WeightList list;
  std::shared_ptr<const CudaWeightStore> base;      ///< Weights on a device that are used, too; null: none.
  std::vector<std::optional<std::size_t>> in_base;  ///< For each of list.weights: its index in the base.
  std::vector<std::uint64_t> slab_offsets;          ///< For each of list.weights that is not in the base.
  std::uint64_t slab_bytes = 0;
  std::vector<WeightPiece> runs;  ///< Ranges to read, without overlaps; both offsets ascend within a source.
  std::shared_ptr<WeightFamily> family = std::make_shared<WeightFamily>();

  std::uint64_t file_bytes() const noexcept;  ///< Bytes that are read.
  /// Cuts the runs into jobs; with `separate` each job has one piece.
  std::vector<WeightJob> jobs(std::uint64_t max_bytes, bool separate = false) const;
  /// Throws Error with ErrorKind::invalid_argument if the base is on another device.
  void check_device(const Device& device) const;
};

/// Weights with the same bytes of a source get one place. `base` is filled: if it has a weight of the same bytes, type
/// and shape under any name, that one is used. Such a plan is for the base's device alone. Throws Error with
/// ErrorKind::out_of_memory if a sum exceeds 64 bits, so that no sum over the plan's parts can.
WeightPlan plan_weights(WeightList list, std::shared_ptr<const CudaWeightStore> base = nullptr);

/// A sample of the weights' bytes in each source that is a file. It tells files apart that have the same size and
/// times: files of read-only images, and files written anew on a file system without a time of the last change.
std::vector<std::string> sample_of(const WeightList& list);

/// Each weight's bytes in the host's memory.
using HostMemory = std::vector<std::shared_ptr<const unsigned char>>;

/// Uses bytes in place if their source has them in memory: all processes share the page cache's copy of a file. Other
/// bytes are read once, by several threads, which count them in `read`. Throws Error: with ErrorKind::closed after a
/// request to stop, with ErrorKind::weights as sources do, and for a weight that does not lie within its source.
HostMemory in_memory(const WeightList& list, const std::stop_token& stop = {},
                     std::atomic<std::uint64_t>* read = nullptr);

/// Returns the same weights, with sources in memory.
WeightList read_to_memory(const WeightList& list, const std::stop_token& stop = {},
                          std::atomic<std::uint64_t>* read = nullptr);

/// How the sources of a list are read best together.
Reading reading_of(const WeightList& list) noexcept;
void interrupt(const WeightList& list) noexcept;

/// Threads that read files: measured on 16 and 64 cores with an H200 each; see docs/loading.md.
int threads_for_files();

}  // namespace ortmulti
