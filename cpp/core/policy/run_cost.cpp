#include "core/policy/run_cost.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>

#include "core/policy/numbers.hpp"

namespace ortmulti {
namespace {

// The largest power of two that a size is not below, up to that of 32 bits.
std::size_t power(std::size_t size) noexcept {
  const std::size_t low = std::min<std::size_t>(size, std::numeric_limits<std::uint32_t>::max());
  return low == 0 ? 0 : static_cast<std::size_t>(std::bit_width(low) - 1);
}

}  // namespace

SharedTime::Part SharedTime::begin(Time now) noexcept {
  advance(now);
  ++runs_;
  return of_each_;
}

SharedTime::Part SharedTime::end(Part begun, Time now) noexcept {
  advance(now);
  --runs_;
  return of_each_ - begun;
}

void SharedTime::advance(Time now) noexcept {
  if (runs_ > 0) {
    of_each_ += (now - last_) / runs_;
  }
  last_ = now;
}

void RunCost::record(std::size_t rows, std::size_t length, std::chrono::nanoseconds time) noexcept {
  Cell& known = cells_[power(length)][power(rows)];
  const double element =
      static_cast<double>(std::max<std::int64_t>(1, time.count())) / static_cast<double>(rows * length);
  // Some runs take much longer than usual, so of what was seldom measured less is believed soon.
  const bool often = known.count >= *numbers::run_cost_tries && runs_ - known.last < *numbers::run_cost_seldom;
  if (known.count == 0) {
    known.element = element;
  } else if (element < known.element) {
    known.element += (element - known.element) / (often ? 8 : 2);
  } else {
    known.element += (std::min(element, 2 * known.element) - known.element) / 8;
  }
  ++known.count;
  known.last = ++runs_;
  least_ = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < powers; ++i) {
    for (std::size_t j = 0; j < powers; ++j) {
      const Cell& cell = cells_[i][j];
      least_ = cell.count > 0 ? std::min(least_, cell.element * std::ldexp(1, static_cast<int>(i + j))) : least_;
    }
  }
}

double RunCost::time(std::size_t rows, std::size_t length) const noexcept { return Times(*this, length).of(rows); }

double RunCost::Times::of(std::size_t rows) noexcept {
  if (const std::size_t now = power(rows); now != power_) {
    power_ = now;
    row_ = cost_.row(length_, now);
    row_of_more_ = cost_.row_of_more(length_, now);
  }
  const auto count = static_cast<double>(rows);
  // A small run beside large ones is measured to take nearly as long as they do: a GPU runs a kernel of each in turn.
  return std::min(row_ * count, cost_.least_ + row_of_more_ * count);
}

double RunCost::row(std::size_t length, std::size_t rows) const noexcept {
  const std::size_t own = power(length);
  const double expected = element(own, rows) * static_cast<double>(length);
  const Cell* const longer = own + 1 < powers ? &cells_[own + 1][rows] : nullptr;
  return longer == nullptr || longer->count == 0
             ? expected
             : std::min(expected, longer->element * static_cast<double>(std::size_t{2} << own));
}

double RunCost::row_of_more(std::size_t length, std::size_t rows) const noexcept {
  double least = std::numeric_limits<double>::infinity();
  const auto& cells = cells_[power(length)];
  for (std::size_t i = rows + 1; i < powers; ++i) {
    least = cells[i].count > 0 ? std::min(least, cells[i].element) : least;
  }
  return least * static_cast<double>(length);
}

double RunCost::hoped(std::size_t length, std::size_t rows) const noexcept {
  double least = std::numeric_limits<double>::infinity();
  const auto try_half = [&](const Cell* of_length, std::size_t its_rows) {
    const Cell& half = of_length[its_rows];
    double fewer = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < its_rows; ++i) {
      fewer = of_length[i].count > 0 ? std::min(fewer, of_length[i].element) : fewer;
    }
    if (half.count > 0 &&
        (half.count < *numbers::run_cost_tries || half.element <= *numbers::run_cost_max_ratio * fewer)) {
      least = std::min(least, *numbers::run_cost_hope * half.element);
    }
  };
  if (rows > 0) {
    try_half(cells_[length].data(), rows - 1);
  }
  if (length > 0) {
    try_half(cells_[length - 1].data(), rows);
  }
  return least;
}

double RunCost::element(std::size_t length, std::size_t rows) const noexcept {
  const Cell& known = cells_[length][rows];
  const bool of_late =
      runs_ - known.last < std::min<std::uint64_t>(*numbers::run_cost_long_ago, 32 * known.count * known.count);
  if (known.count >= *numbers::run_cost_tries && of_late) {
    return known.element;
  }
  const double best = hoped(length, rows);
  if (known.count == 0) {
    return rows == 0 && std::isinf(best) ? 1 : best;  // one row always runs
  }
  const bool as_expected =
      known.count >= *numbers::run_cost_few_tries && known.element <= *numbers::run_cost_max_ratio * best;
  return as_expected && of_late ? known.element : std::min(known.element, best);
}

std::string RunCost::why() const {
  std::string text;
  for (std::size_t length = 0; length < powers; ++length) {
    std::string costs;
    for (std::size_t rows = 0; rows < powers; ++rows) {
      if (const Cell& known = cells_[length][rows]; known.count > 0) {
        std::array<char, 64> cost{};
        std::snprintf(cost.data(), cost.size(), "%s%.3g us by %zu", costs.empty() ? " " : ", ", known.element / 1e3,
                      std::size_t{1} << rows);
        costs += cost.data();
      }
    }
    if (!costs.empty()) {
      text += (text.empty() ? "an element of a run takes, from length " : "; from ") +
              std::to_string(std::size_t{1} << length) + ":" + costs;
    }
  }
  return text.empty() ? "" : text + " rows";
}

}  // namespace ortmulti
