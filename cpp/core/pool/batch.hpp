#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/pool/request.hpp"

namespace ortmulti {

/// Whether and how waiting requests are run together.
struct Batching {
  std::size_t max_size = 1;  ///< Sizes of the requests' dimension `axis` together; 1: no batching.
  std::chrono::nanoseconds max_delay{0};
  std::size_t axis = 0;
  std::vector<std::size_t> sizes;  ///< Ascending; those that runs have, if any: smaller ones are padded to the next.

  /// The size with which requests of this size together run.
  std::size_t padded(std::size_t size) const noexcept;

  bool enabled() const noexcept { return max_size > 1; }
};

/// The size of the request's inputs along the axis; 0 where it cannot be batched: no input, inputs that differ in it or
/// have no such dimension, or values that are no tensors of elements of a fixed size.
std::size_t batch_size(const Request& request, std::size_t axis);

/// What requests must have alike to be run together: names, types, and dimensions but for the axis's. Empty where the
/// request cannot be batched.
std::string batch_key(const Request& request, std::size_t axis);

/// One request of several with the same key: their inputs one after another along the axis, and then the last row of
/// them again up to the size that they are padded to.
std::shared_ptr<Request> join(const std::vector<std::shared_ptr<Request>>& requests, const Batching& batching);

/// Gives each request its part of the joint request's outputs, copied. Throws Error with ErrorKind::invalid_argument
/// for an output that has not the inputs' size along the axis.
void split(Request& joint, const std::vector<std::shared_ptr<Request>>& requests, std::size_t axis);

}  // namespace ortmulti
