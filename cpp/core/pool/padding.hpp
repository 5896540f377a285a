#pragma once

#include <onnxruntime_cxx_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/ort/value.hpp"

namespace ortmulti {

/// The size of a run of several requests.
struct JointSize {
  std::size_t rows = 0;      ///< Along the batch's axis.
  std::size_t longest = 0;   ///< The longest request; 0 without padding.
  std::size_t elements = 0;  ///< The sum of each request's rows times length.
  std::size_t alone = 0;     ///< The same with the lengths to which each request alone is padded.

  void add(const JointSize& more) noexcept;
};

/// The size of a joint run of requests of these sizes.
JointSize sum_of(const std::vector<JointSize>& sizes);

/// How requests of different lengths are run together: which dimensions have the length, and what fills them up.
struct Padding {
  struct PaddedTensor {
    std::string name;
    std::vector<std::size_t> axes;  ///< The axes along which requests have their length.
    std::vector<std::byte> value;   ///< Of an input: the element that fills it up.
  };

  std::size_t axis = 0;   ///< The axis of the batch.
  std::string dimension;  ///< Its name, for messages.
  std::vector<PaddedTensor> inputs;
  std::vector<PaddedTensor> outputs;  ///< Outputs with the length: they are cut.
  /// An input of ones that is made if a request lacks it; its axes are the batch's and the length's. Empty: none.
  std::string mask;
  ONNXTensorElementDataType mask_type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::vector<std::byte> mask_one;  ///< The element 1 of that type.
  bool at_front = false;            ///< The front is filled up; else the end.

  std::vector<std::size_t> lengths;       ///< Lengths that runs may have, ascending. Empty: any.
  std::size_t multiple = 1;               ///< Lengths of runs are multiples of this.
  std::optional<std::size_t> max_tokens;  ///< The most elements() of a run of several requests.
  double max_waste = 1;                   ///< The share of a run's elements that joining may fill up.
  bool packed = false;                    ///< The model leaves padding out of its computation.

  /// The length to which this one is padded.
  std::size_t rounded(std::size_t length) const noexcept;
  /// The elements that a run computes: rows times length, or its requests' alone.
  std::size_t elements(const JointSize& run) const noexcept {
    return packed ? run.elements : run.rows * rounded(run.longest);
  }
  /// Null: the tensor does not have the length.
  static const PaddedTensor* find(const std::vector<PaddedTensor>& tensors, const char* name) noexcept;

  /// The shape of a mask that the request lacks; empty: it lacks none. Throws Error if no input with elements in the
  /// host's memory has the length: a mere shape could ask for any number of elements.
  std::vector<std::int64_t> mask_shape(const RunInputs& given) const;
  /// Adds a mask of that shape. Its memory is filled here, so a large one takes time.
  void add_mask(RunInputs& given, const std::vector<std::int64_t>& shape) const;
};

/// Fills memory with copies of one element.
void fill(std::byte* begin, std::size_t count, const std::vector<std::byte>& value) noexcept;

}  // namespace ortmulti
