#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace ortmulti {

/// Chooses how many rows are joined into a run of a model on the CPU. A larger run is not always cheaper there: one of
/// several images takes as long as a run of each, and whoever was joined waits for all of them. So the fewest rows are
/// joined with which a row costs hardly more than with any other number. Without clock, thread or lock.
class RowsPerRun {
 public:
  /// The most rows of the next run. `most`: that were asked for; they are joined until less was measured to do.
  std::size_t choose(std::size_t most) const noexcept;
  /// Notes a run and its part of the device's time.
  void record(std::size_t rows, std::chrono::nanoseconds time) noexcept;
  /// What was measured, as a text; empty where nothing was.
  std::string why() const;

 private:
  struct Size {
    double row = 0;              // nanoseconds
    std::uint64_t runs = 0;      // measured; 0: unknown
    std::uint64_t last = 0;      // of them
    std::uint64_t left_out = 0;  // in a row
  };
  bool known(std::size_t power) const noexcept;

  static constexpr std::size_t powers = 24;
  std::array<Size, powers> sizes_{};  // of runs with at most 2^i rows, and more than half of that
  std::uint64_t runs_ = 0;
  std::size_t before_ = powers;  // of the last run: after another size the caches have nothing of this one
};

}  // namespace ortmulti
