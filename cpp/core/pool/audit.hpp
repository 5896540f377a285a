#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/pool/batching.hpp"
#include "core/pool/request.hpp"

namespace ortmulti {

/// How two answers to one request differ.
struct Difference {
  std::string text;        ///< Describes the first output that differs by more than rounding; empty: none.
  bool in_shape = false;   ///< In its shape or type.
  bool in_floats = false;  ///< In floating-point numbers.
  bool widely = false;     ///< In half of its elements or more.

  explicit operator bool() const noexcept { return !text.empty(); }
};

/// Compares an answer from a joint run with the answer to the request alone. Floating-point numbers may differ by
/// rounding: by a share of the output's largest value, which depends on its type, or by a millionth of the largest
/// input, since that error stays where numbers cancel out. Of outputs in `random`, only types and shapes are compared.
Difference compare(const Request& joined, const Request& alone, const std::set<std::string>& random = {});

/// Whether several requests have the same inputs, bit for bit. A run of equal requests cannot show that the model mixes
/// them.
bool alike(const Requests& requests);

/// Copies the request for a run of its own, with its own rows and length.
std::shared_ptr<Request> copy_alone(const std::shared_ptr<Request>& request, const JointSize& size,
                                    const Batching& batching);
/// Copies the request for a run with the shape of the joint run; copies of the request fill it up.
std::shared_ptr<Request> copy_in_size_of(const std::shared_ptr<Request>& request, const JointSize& size,
                                         const std::vector<JointSize>& sizes, const Batching& batching);
/// Takes the request's answer out of that run.
std::shared_ptr<Request> part_of(Request& run, const JointSize& size, const std::vector<JointSize>& sizes,
                                 const Batching& batching);

}  // namespace ortmulti
