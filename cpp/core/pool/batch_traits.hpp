#pragma once

#include <onnxruntime_cxx_api.h>

#include <cstddef>
#include <string>

#include "core/ort/value.hpp"
#include "core/pool/batching.hpp"
#include "core/pool/padding.hpp"
#include "core/pool/request.hpp"

namespace ortmulti {

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

/// In what two requests with different keys differ: "input 'x' has the shapes (1, 5) and (2, 7)".
std::string why_unlike(const Request& one, const Request& other);

/// Describes an input. False if it cannot be joined, as describe() of a value says.
bool describe(const Request& request, std::size_t input, HostTensor& tensor);
/// Whether rows of elements of this type can be joined: types of fewer bits share bytes between rows.
bool has_whole_bytes(ONNXTensorElementDataType type);

}  // namespace ortmulti
