#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "core/ort/value.hpp"
#include "core/pool/padding.hpp"
#include "core/pool/request.hpp"

namespace ortmulti {

/// Whether and how waiting requests are run together.
struct Batching {
  std::size_t max_size = 1;  ///< Sizes of the requests' dimension `axis` together; 1: no batching.
  std::chrono::nanoseconds max_delay{0};
  std::size_t axis = 0;
  std::vector<std::size_t> sizes;  ///< Ascending; those that runs have, if any: smaller ones are padded to the next.
  std::shared_ptr<const Padding> padding = nullptr;  ///< Null: only requests of one shape are joined.

  /// The size with which requests of this size together run.
  std::size_t padded(std::size_t size) const noexcept;

  /// The length with which requests of this one run; 0 without padding.
  std::size_t rounded(std::size_t length) const noexcept { return padding ? padding->rounded(length) : length; }
  /// Whether such a request runs with its own shape where it runs alone.
  bool leaves(const JointSize& size) const noexcept {
    return padded(size.rows) == size.rows && rounded(size.longest) == size.longest;
  }

  bool enabled() const noexcept { return max_size > 1; }

  /// Whether requests may have one run of this size, with so many elements where it pads.
  bool fits(const JointSize& run, std::size_t elements) const noexcept;
  /// Whether a run of this size may have more, and that takes no longer than two runs.
  bool may_join(const JointSize& run, const JointSize& more, const RunCost& cost) const noexcept;
  /// Whether a run of this size may have not even one of its length more.
  bool is_full(const JointSize& run) const noexcept;
  /// Those of the candidates, given by their sizes in the order of their turns, that run with the first of them: with
  /// padding, all candidates run in the runs that take the least time together. Indices, ascending.
  std::vector<std::size_t> choose(const std::vector<JointSize>& candidates, const RunCost& cost) const;

  /// Throws Error with ErrorKind::invalid_argument if no joint run of a model with these inputs can succeed: an input
  /// fixes the dimension `axis`, or has none. All may fix it to the only one of `sizes`.
  void check_inputs(const std::vector<ValueInfo>& inputs) const;
};

/// How long a session that became free waits for the next requests of the clients that it has just answered. They come
/// at once if they are clients that wait for each answer: without the wait they would miss this run, and form another
/// half batch during it. A wait that brings too few makes the next ones rarer, down to one after 64 runs.
class Grace {
 public:
  /// After a run: the size of its batch, and how long it took.
  void record_run(std::size_t size, std::chrono::nanoseconds time) noexcept;

  /// How long to wait at most after a run, where `workers` take requests from one queue: a tenth of the average time
  /// between their runs.
  std::chrono::nanoseconds longest_wait(std::size_t workers) const noexcept;

  /// Whether to wait this time.
  bool tries() noexcept;

  /// After a wait in which at most `most` came.
  void record_wait(std::size_t came, std::size_t most) noexcept;

  /// The size of the last run's batch.
  std::size_t answered() const noexcept { return answered_; }

 private:
  std::size_t answered_ = 0;
  std::chrono::nanoseconds run_time_{0};  // exponential average
  unsigned pause_ = 0;                    // runs between two waits
  unsigned left_ = 0;
};

/// What decides which requests run together.
struct BatchTraits {
  /// Its rows are the size of the inputs along the axis; 0 where it cannot be batched: no input, inputs that differ in
  /// it or have no such dimension, or values that are no tensors of elements of a fixed size.
  JointSize size;
  /// What requests must have alike to be run together: names, types, and dimensions but for the axis's and padded ones.
  /// Empty where the request cannot be batched.
  std::string key;
};
/// Throws Error with ErrorKind::invalid_argument for inputs to be padded that have several lengths, or none.
BatchTraits batch_traits(const Request& request, const Batching& batching);

/// An input; false for what cannot be joined, as the same of a value.
bool describe(const Request& request, std::size_t input, HostTensor& tensor);

/// The size of a joint run of requests of these sizes.
JointSize sum_of(const std::vector<JointSize>& sizes);

/// In what two requests with different keys differ: "input 'x' has the shapes (1, 5) and (2, 7)".
std::string why_unlike(const Request& one, const Request& other);

/// One request of several with the same key: their inputs one after another along the axis, filled up to one length,
/// and then the last row of them again up to the size that they are padded to. `sizes`: theirs, as batch_traits() says.
std::shared_ptr<Request> join(const Requests& requests, const std::vector<JointSize>& sizes, const Batching& batching);

/// Gives each request its part of the joint request's outputs, copied: so that an answer that is kept keeps no other's
/// memory. Requests that take rows get these, where they are small. Throws Error with ErrorKind::invalid_argument for
/// an output that has not the inputs' size along the axis.
void split(Request& joint, const Requests& requests, const std::vector<JointSize>& sizes, const Batching& batching);

}  // namespace ortmulti
