#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "core/ort/value.hpp"
#include "core/policy/run_cost.hpp"
#include "core/pool/padding.hpp"

namespace ortmulti {

/// Whether and how waiting requests are run together.
struct Batching {
  std::size_t max_size = 1;  ///< Most rows of a joint run, along `axis`; 1: no batching.
  std::chrono::nanoseconds max_delay{0};
  std::size_t axis = 0;
  std::vector<std::size_t> sizes;  ///< Rows that runs may have, ascending; fewer are padded to the next. Empty: any.
  std::shared_ptr<const Padding> padding = nullptr;  ///< Null: only requests of one shape are joined.

  /// The rows of a run to which so many rows are padded.
  std::size_t padded(std::size_t size) const noexcept;

  /// The length to which this one is padded; 0 without padding.
  std::size_t rounded(std::size_t length) const noexcept { return padding ? padding->rounded(length) : length; }
  bool enabled() const noexcept { return max_size > 1; }

  /// The elements that a run computes; 0 without padding.
  std::size_t elements(const JointSize& run) const noexcept { return padding ? padding->elements(run) : 0; }
  /// Whether padding takes time: then lengths, and measured times, decide which requests are joined.
  bool minds_lengths() const noexcept { return padding && !padding->packed; }
  /// Whether requests may share a run of this size, which computes so many elements.
  bool fits(const JointSize& run, std::size_t elements) const noexcept;
  /// Whether `more` may join a run of this size, and one run takes no longer than two.
  bool may_join(const JointSize& run, const JointSize& more, const RunCost& cost) const noexcept;
  /// Whether not even the shortest request fits into a run of this size.
  bool is_full(const JointSize& run) const noexcept;
  /// Chooses which candidates run with the first one. `candidates`: their sizes, in the order of their turns. Where
  /// padding takes time, all are planned into the runs that take the least time together. Else those that fit join as
  /// they come. Returns indices, ascending.
  std::vector<std::size_t> choose(const std::vector<JointSize>& candidates, const RunCost& cost) const;

  /// Throws Error with ErrorKind::invalid_argument if no joint run of a model with these inputs can succeed: an input
  /// fixes the dimension `axis`, or has none. All may fix it to the only one of `sizes`.
  void check_inputs(const std::vector<ValueInfo>& inputs) const;
};

}  // namespace ortmulti
