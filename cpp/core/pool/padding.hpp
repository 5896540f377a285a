#pragma once

#include <onnxruntime_cxx_api.h>

#include <array>
#include <chrono>
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

  std::vector<std::size_t> lengths;  ///< Lengths that runs may have, ascending. Empty: any.
  std::size_t multiple = 1;          ///< Lengths of runs are multiples of this.
  std::optional<std::size_t> max_tokens;
  double max_waste = 1;  ///< The share of a run's elements that joining may fill up.

  /// The length to which this one is padded.
  std::size_t rounded(std::size_t length) const noexcept;
  /// The elements of a run: rows times length.
  std::size_t elements(const JointSize& run) const noexcept { return run.rows * rounded(run.longest); }
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

/// Shares a device's time equally among the runs under way.
class SharedTime {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Part = std::chrono::nanoseconds;

  /// Begins a run. Give the result to end().
  Part begin(Time now) noexcept;
  /// Ends a run. Returns its part of the time.
  Part end(Part begun, Time now) noexcept;

 private:
  void advance(Time now) noexcept;

  std::int64_t runs_ = 0;  // under way
  Time last_;
  Part of_each_{0};
};

/// What an element of a run costs, by the powers of two of the run's length and rows. On a GPU a larger run costs
/// hardly more. On a CPU a joint run of long texts costs more than the texts alone, as it leaves the caches.
class RunCost {
 public:
  /// `time`: the run's part of the device's.
  void record(std::size_t rows, std::size_t length, std::chrono::nanoseconds time) noexcept;

  /// How much of the device's time a run takes, in nanoseconds. If little was measured, or long ago, the estimate is a
  /// little less than for half as many rows or half the length, so that the size is tried. Infinite for several rows if
  /// neither was measured, or both cost more than runs of fewer rows.
  double time(std::size_t rows, std::size_t length) const noexcept;

  /// Times of runs of one length, for many numbers of rows.
  class Times {
   public:
    Times(const RunCost& cost, std::size_t length) noexcept : cost_(cost), length_(length) {}
    double of(std::size_t rows) noexcept;

   private:
    const RunCost& cost_;
    std::size_t length_;
    std::optional<std::size_t> power_;  // of the last number of rows
    double row_ = 0;
    double row_of_more_ = 0;
  };

  /// What was measured, as a text; empty where nothing was.
  std::string why() const;

 private:
  static constexpr std::size_t powers = 32;
  struct Cell {
    double element = 0;       // nanoseconds
    std::uint64_t count = 0;  // measured runs; 0: unknown
    std::uint64_t last = 0;   // of them
  };
  /// The least that an element may cost, going by runs of fewer elements. Infinite: do not try the size.
  double hoped(std::size_t length, std::size_t rows) const noexcept;
  double element(std::size_t length, std::size_t rows) const noexcept;
  /// What a row costs in a run of about 2^rows rows. Never more than in a longer run: else texts would be padded up to
  /// that.
  double row(std::size_t length, std::size_t rows) const noexcept;
  /// The least that a row was measured to cost in runs of more rows.
  double row_of_more(std::size_t length, std::size_t rows) const noexcept;

  std::array<std::array<Cell, powers>, powers> cells_{};  // of lengths, and rows
  std::uint64_t runs_ = 0;
  double least_ = 0;  // nanoseconds that any run took, by the fewest elements of each cell
};

}  // namespace ortmulti
