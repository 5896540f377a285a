#include "core/policy/rows_per_run.hpp"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <utility>

#include "core/policy/numbers.hpp"

namespace ortmulti {
namespace {

// The smallest one whose power of two is not below the number of rows.
std::size_t power_not_below(std::size_t rows) noexcept {
  return static_cast<std::size_t>(std::bit_width(std::max<std::size_t>(rows, 1) - 1));
}

}  // namespace

bool RowsPerRun::known(std::size_t power) const noexcept {
  const Size& size = sizes_.at(power);
  return size.runs >= *numbers::rows_per_run_min_runs && runs_ - size.last < *numbers::rows_per_run_long_ago;
}

std::size_t RowsPerRun::choose(std::size_t most) const noexcept {
  const std::size_t top = std::min(power_not_below(most), powers - 1);
  std::size_t largest = powers;
  std::size_t cheapest = powers;
  for (std::size_t i = 0; i <= top; ++i) {
    if (known(i)) {
      largest = i;
      cheapest = cheapest == powers || sizes_.at(i).row < sizes_.at(cheapest).row ? i : cheapest;
    }
  }
  if (largest == powers) {
    return most;
  }
  std::size_t chosen = 0;
  while (!known(chosen) || sizes_.at(chosen).row > *numbers::rows_per_run_hardly_more * sizes_.at(cheapest).row) {
    ++chosen;
  }
  if (chosen > 0 && !known(chosen - 1) && sizes_.at(chosen).runs >= *numbers::rows_per_run_min_runs_before_trials) {
    const std::size_t half = std::size_t{1} << (chosen - 1);
    const std::chrono::duration<double, std::nano> hand_over = *numbers::rows_per_run_of_each_run;
    if (hand_over.count() / static_cast<double>(half) <= *numbers::rows_per_run_hardly_more * sizes_.at(chosen).row) {
      return std::min(most, half);
    }
  }
  if (chosen == largest) {
    return most;  // nothing says that more are not better yet
  }
  return std::min(most, std::size_t{1} << (known(chosen + 1) ? chosen : chosen + 1));
}

void RowsPerRun::record(std::size_t rows, std::chrono::nanoseconds time) noexcept {
  ++runs_;
  const std::size_t now = std::min(power_not_below(rows), powers - 1);
  Size& size = sizes_.at(now);
  const bool again = std::exchange(before_, now) == now;
  size.left_out = again ? 0 : size.left_out + 1;
  if (!again && size.left_out <= *numbers::rows_per_run_min_runs) {
    return;  // else it never comes twice in a row
  }
  if (runs_ - size.last >= *numbers::rows_per_run_long_ago) {
    size = {};
  }
  const double row = static_cast<double>((time + *numbers::rows_per_run_of_each_run).count()) /
                     static_cast<double>(std::max<std::size_t>(rows, 1));
  ++size.runs;
  size.row +=
      (row - size.row) * std::max(1.0 / static_cast<double>(size.runs), *numbers::rows_per_run_weight_of_newest);
  size.last = runs_;
}

std::string RowsPerRun::why() const {
  std::string text;
  for (std::size_t i = 0; i < powers; ++i) {
    if (sizes_.at(i).runs > 0) {
      std::array<char, 64> cost{};
      std::snprintf(cost.data(), cost.size(), "%s%.3g ms in runs of %zu", text.empty() ? "a row takes " : ", ",
                    sizes_.at(i).row / 1e6, std::size_t{1} << i);
      text += cost.data();
    }
  }
  return text;
}

}  // namespace ortmulti
