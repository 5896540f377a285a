#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/pool/batch.hpp"
#include "core/pool/request.hpp"

namespace ortmulti {

/// How two answers to one request differ.
struct Difference {
  std::string text;        ///< Of the first output that differs by more than rounding; empty: none does.
  bool in_shape = false;   ///< In its shape or type.
  bool in_floats = false;  ///< In floating-point numbers.
  bool widely = false;     ///< In half of its elements or more.

  explicit operator bool() const noexcept { return !text.empty(); }
};

/// Compares an answer from a joint run with the answer to the request alone. Floating-point numbers may differ as far
/// as runs of several sizes round: by a share of the output's largest value that goes by its type, or by a millionth
/// of the largest input, which is left where numbers cancel out.
/// Of outputs in `random` only types and shapes count.
Difference compare(const Request& joined, const Request& alone, const std::set<std::string>& random = {});

/// Whether several requests have the same inputs, bit for bit: in one run they show nothing of what mixes them.
bool alike(const Requests& requests);

/// The same inputs for a run without others: with the request's own rows and length.
std::shared_ptr<Request> copy_alone(const std::shared_ptr<Request>& request, const JointSize& size,
                                    const Batching& batching);
/// The same inputs in a run that has the shape of a joint one of these requests: filled up with copies of the request.
std::shared_ptr<Request> copy_in_size_of(const std::shared_ptr<Request>& request, const JointSize& size,
                                         const std::vector<JointSize>& sizes, const Batching& batching);
/// The request's answer out of that run.
std::shared_ptr<Request> part_of(Request& run, const JointSize& size, const std::vector<JointSize>& sizes,
                                 const Batching& batching);

}  // namespace ortmulti
