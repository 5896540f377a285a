#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace ortmulti {

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
