#include "core/pool/padding.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

#include "core/base/error.hpp"

namespace ortmulti {
namespace {

// A run that takes about as long as expected is known by few tries. Another may have been of shapes new to a GPU.
constexpr std::uint64_t few_tries = 2;
constexpr std::uint64_t tries = 6;
constexpr double max_cost_ratio = 1.3;

// The largest power of two that a size is not below, up to that of 32 bits.
std::size_t power(std::size_t size) noexcept {
  const std::size_t low = std::min<std::size_t>(size, std::numeric_limits<std::uint32_t>::max());
  return low == 0 ? 0 : static_cast<std::size_t>(std::bit_width(low) - 1);
}

}  // namespace

void JointSize::add(const JointSize& more) noexcept {
  rows += more.rows;
  longest = std::max(longest, more.longest);
  elements += more.elements;
  alone += more.alone;
}

std::size_t Padding::rounded(std::size_t length) const noexcept {
  const auto next = std::ranges::lower_bound(lengths, length);
  return next != lengths.end() ? *next : (length + multiple - 1) / multiple * multiple;
}

const Padding::PaddedTensor* Padding::find(const std::vector<PaddedTensor>& tensors, const char* name) noexcept {
  const auto found = std::ranges::find(tensors, name, &PaddedTensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

std::vector<std::int64_t> Padding::mask_shape(const RunInputs& given) const {
  const auto& names = given.names();
  if (mask.empty() || std::ranges::any_of(names, [this](const char* name) { return mask == name; })) {
    return {};
  }
  const PaddedTensor* const made = find(inputs, mask.c_str());
  for (std::size_t i = 0; i < names.size(); ++i) {
    const PaddedTensor* const padded = find(inputs, names[i]);
    const HostTensor* const like = given.known(i);
    if (padded == nullptr || like == nullptr || axis >= like->rank || padded->axes.front() >= like->rank) {
      continue;
    }
    const std::int64_t length = like->shape[padded->axes.front()];
    const auto* const begin = like->shape.data();
    if (std::count(begin, begin + like->rank, 0) != 0 && length != 0 && like->shape[axis] != 0) {
      continue;  // another dimension is 0
    }
    std::vector<std::int64_t> shape(made->axes.size() + 1, length);
    shape[axis] = like->shape[axis];
    return shape;
  }
  throw Error(ErrorKind::invalid_argument, "the mask '" + mask +
                                               "' is made from an array with the batch's dimension and " + dimension +
                                               " that is not empty, and the request has none: give one, or the mask");
}

void Padding::add_mask(RunInputs& given, const std::vector<std::int64_t>& shape) const {
  Ort::Value ones = new_tensor(mask_type, shape);
  fill(static_cast<std::byte*>(ones.GetTensorMutableRawData()), tensor_bytes(ones) / mask_one.size(), mask_one);
  given.add(find(inputs, mask.c_str())->name.c_str(), std::move(ones));
}

void fill(std::byte* begin, std::size_t count, const std::vector<std::byte>& value) noexcept {
  if (count == 0) {
    return;
  }
  std::size_t done = value.size();
  const std::size_t all = count * value.size();
  std::memcpy(begin, value.data(), done);
  while (done < all) {
    const std::size_t more = std::min(done, all - done);
    std::memcpy(begin + done, begin, more);
    done += more;
  }
}

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
  const bool often = known.count >= tries && runs_ - known.last < 64;
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
  constexpr double less = 0.9;
  double least = std::numeric_limits<double>::infinity();
  const auto try_half = [&](const Cell* of_length, std::size_t its_rows) {
    const Cell& half = of_length[its_rows];
    double fewer = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < its_rows; ++i) {
      fewer = of_length[i].count > 0 ? std::min(fewer, of_length[i].element) : fewer;
    }
    if (half.count > 0 && (half.count < tries || half.element <= max_cost_ratio * fewer)) {
      least = std::min(least, less * half.element);
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
  constexpr std::uint64_t long_ago = 2048;  // runs
  const Cell& known = cells_[length][rows];
  const bool of_late = runs_ - known.last < std::min(long_ago, 32 * known.count * known.count);
  if (known.count >= tries && of_late) {
    return known.element;
  }
  const double best = hoped(length, rows);
  if (known.count == 0) {
    return rows == 0 && std::isinf(best) ? 1 : best;  // one row always runs
  }
  const bool as_expected = known.count >= few_tries && known.element <= max_cost_ratio * best;
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
