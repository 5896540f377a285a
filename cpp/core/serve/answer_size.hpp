#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>

namespace ortmulti::serve {

/// What answers of a model take, by its last ones: most have a number of bytes for each byte of their inputs, and none
/// is expected to be larger than the largest. Both rise at once, and fall slowly. Any thread may use it.
class AnswerSize {
 public:
  /// About how many bytes the answer to inputs of so many has.
  std::size_t expected(std::size_t inputs) const noexcept {
    return static_cast<std::size_t>(std::min(per_byte_ * static_cast<double>(inputs), largest_.load()));
  }
  void note(std::size_t inputs, std::size_t answer) noexcept {
    const auto size = static_cast<double>(answer);
    follow(per_byte_, size / static_cast<double>(std::max<std::size_t>(inputs, 1)));
    follow(largest_, size);
  }

 private:
  static constexpr double unknown = 1e18;

  static void follow(std::atomic<double>& known, double seen) noexcept {
    constexpr double share = 1.0 / 8;
    const double before = known;
    known = seen >= before || before >= unknown ? seen : before - (before - seen) * share;
  }

  std::atomic<double> per_byte_{1};
  std::atomic<double> largest_{unknown};
};

}  // namespace ortmulti::serve
