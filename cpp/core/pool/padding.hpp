#pragma once

#include <onnxruntime_cxx_api.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/ort/value.hpp"

namespace ortmulti {

/// What the requests of one run are together.
struct JointSize {
  std::size_t rows = 0;      ///< Their sizes along the batch's axis, together.
  std::size_t longest = 0;   ///< Of their lengths; 0 without padding.
  std::size_t elements = 0;  ///< Rows times length of each, together.
  std::size_t alone = 0;     ///< The same, with the lengths with which each would run alone.

  void add(const JointSize& more) noexcept;
};

/// How requests of different lengths are run together: which dimensions have the length, and what fills them up.
struct Padding {
  struct Tensor {
    std::string name;
    std::vector<std::size_t> axes;  ///< Those that have the length.
    std::vector<std::byte> value;   ///< Of an input: the element that fills it up.
  };

  std::size_t axis = 0;   ///< The batch's.
  std::string dimension;  ///< Its name, for messages.
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;  ///< Those with the length; they are cut.
  /// The input, if any, that is made where a request lacks it: of ones, with the batch's axis and the length alone.
  std::string mask;
  ONNXTensorElementDataType mask_type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::vector<std::byte> mask_one;  ///< The element 1 of that type.
  bool at_front = false;            ///< What is filled up; else the end.

  std::vector<std::size_t> lengths;  ///< Ascending; those that runs have, if any.
  std::size_t multiple = 1;          ///< Of which runs have a multiple.
  std::optional<std::size_t> max_tokens;
  double max_waste = 1;  ///< The share of a run's elements that may be filled up since requests were joined.

  /// The length with which requests of this one run.
  std::size_t rounded(std::size_t length) const noexcept;
  /// The elements of a run: rows times length.
  std::size_t elements(const JointSize& run) const noexcept { return run.rows * rounded(run.longest); }
  /// Null: it has not the length.
  static const Tensor* find(const std::vector<Tensor>& tensors, const char* name) noexcept;

  /// The shape of the mask where it lacks; else empty. Throws Error where no input in the host's memory has the length,
  /// and elements: a shape alone could ask for any number of them.
  std::vector<std::int64_t> mask_shape(const RunInputs& given) const;
  /// Adds a mask of that shape. Its memory is filled here, so a large one takes time.
  void add_mask(RunInputs& given, const std::vector<std::int64_t>& shape) const;
};

/// Fills memory with copies of one element.
void fill(std::byte* begin, std::size_t count, const std::vector<std::byte>& value) noexcept;

/// The time of a device, of which the runs under way get equal parts.
class SharedTime {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Part = std::chrono::nanoseconds;

  /// A run begins; what it returns is for its end.
  Part begin(Time now) noexcept;
  /// Returns the run's part.
  Part end(Part begun, Time now) noexcept;

 private:
  void advance(Time now) noexcept;

  std::int64_t runs_ = 0;  // under way
  Time last_;
  Part of_each_{0};
};

/// What an element of a run costs, by the run's length and rows, in powers of two. On a GPU runs of more elements cost
/// hardly more; on a CPU those of long texts cost more than each of these alone, as they leave its caches.
class RunCost {
 public:
  /// `time`: the run's part of the device's.
  void record(std::size_t rows, std::size_t length, std::chrono::nanoseconds time) noexcept;

  /// How much of the device's time a run takes, in nanoseconds. Where little was measured, or long ago, an element may
  /// cost less than one of a run of half as many rows or half the length: it is tried. Infinite for several rows where
  /// neither was measured, or both cost more than runs of fewer rows.
  double time(std::size_t rows, std::size_t length) const noexcept;

  /// Of runs of one length, asked for again and again.
  class Times {
   public:
    Times(const RunCost& cost, std::size_t length) noexcept : cost_(cost), length_(length) {}
    double of(std::size_t rows) noexcept;

   private:
    const RunCost& cost_;
    std::size_t length_;
    std::optional<std::size_t> power_;  // of the rows that were asked for last
    double row_ = 0;
    double row_of_more_ = 0;
  };

  /// What was measured, as a text; empty where nothing was.
  std::string why() const;

 private:
  static constexpr std::size_t powers = 32;
  struct Cell {
    double element = 0;       // nanoseconds
    std::uint64_t count = 0;  // of the runs that were measured; 0: unknown
    std::uint64_t last = 0;   // of them
  };
  /// What it may cost at best, going by runs of fewer elements; infinite: it is not to be tried.
  double hoped(std::size_t length, std::size_t rows) const noexcept;
  double element(std::size_t length, std::size_t rows) const noexcept;
  /// Of a run of about 2^rows rows: never more than of a longer one, or texts would be padded up to that.
  double row(std::size_t length, std::size_t rows) const noexcept;
  /// What a row of a run of more rows was measured to take at best.
  double row_of_more(std::size_t length, std::size_t rows) const noexcept;

  std::array<std::array<Cell, powers>, powers> cells_{};  // of lengths, and rows
  std::uint64_t runs_ = 0;
  double least_ = 0;  // that any run took, in nanoseconds: each cell counts with its fewest elements
};

}  // namespace ortmulti
