#include "core/pool/padding.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

#include "core/base/error.hpp"

namespace ortmulti {
namespace {

// The largest power of two that a size is not below, up to that of 32 bits.
std::size_t power(std::size_t size) noexcept {
  const auto low = static_cast<std::uint32_t>(std::min<std::size_t>(size, std::numeric_limits<std::uint32_t>::max()));
  return low == 0 ? 0 : static_cast<std::size_t>(31 - __builtin_clz(low));
}

}  // namespace

void JointSize::add(const JointSize& more) noexcept {
  rows += more.rows;
  longest = std::max(longest, more.longest);
  elements += more.elements;
  alone += more.alone;
}

std::size_t Padding::rounded(std::size_t length) const noexcept {
  const auto next = std::lower_bound(lengths.begin(), lengths.end(), length);
  return next != lengths.end() ? *next : (length + multiple - 1) / multiple * multiple;
}

const Padding::Tensor* Padding::find(const std::vector<Tensor>& tensors, const char* name) noexcept {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(), [name](const Tensor& tensor) { return tensor.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

void Padding::complete(RunInputs& given) const {
  const auto& names = given.names();
  if (mask.empty() || std::any_of(names.begin(), names.end(), [this](const char* name) { return mask == name; })) {
    return;
  }
  const Tensor* const made = find(inputs, mask.c_str());
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Tensor* const padded = find(inputs, names[i]);
    const HostTensor* const like = given.known(i);
    if (padded == nullptr || like == nullptr || axis >= like->rank || padded->axes.front() >= like->rank) {
      continue;
    }
    std::vector<std::int64_t> shape(made->axes.size() + 1, like->shape[padded->axes.front()]);
    shape[axis] = like->shape[axis];
    Ort::Value ones = new_tensor(mask_type, shape);
    fill(static_cast<std::byte*>(ones.GetTensorMutableRawData()), tensor_bytes(ones) / mask_one.size(), mask_one);
    given.add(made->name.c_str(), std::move(ones));
    return;
  }
  throw Error(ErrorKind::invalid_argument, "the mask '" + mask +
                                               "' is made from an array with the batch's dimension and " + dimension +
                                               ", and the request has none: give one, or the mask");
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

void RunCost::record(std::size_t rows, std::size_t length, std::chrono::nanoseconds time,
                     std::size_t at_once) noexcept {
  Cell& known = cells_[power(length)][power(rows)];
  const auto share = static_cast<double>(time.count()) / static_cast<double>(std::max<std::size_t>(1, at_once));
  const double element = std::max(1.0, share) / static_cast<double>(rows * length);
  if (known.count == 0) {
    known.element = element;
  } else if (known.count == 1) {
    known.element = std::min(known.element, element);  // the first run of a shape has more to do
  } else {
    known.element += (element - known.element) / 8;
  }
  ++known.count;
  known.last = ++runs_;
}

double RunCost::time(std::size_t rows, std::size_t length) const noexcept {
  return element(power(length), power(rows)) * static_cast<double>(rows * length);
}

RunCost::Times::Times(const RunCost& cost, std::size_t length) noexcept
    : cost_(cost), length_(length), element_(cost.element(power(length), 0)) {}

double RunCost::Times::of(std::size_t rows) noexcept {
  if (const std::size_t now = power(rows); now != power_) {
    power_ = now;
    element_ = cost_.element(power(length_), now);
  }
  return element_ * static_cast<double>(rows * length_);
}

const RunCost::Cell* RunCost::like(std::size_t elements, std::size_t length) const noexcept {
  for (std::size_t apart = 0; apart < powers; ++apart) {
    for (const std::size_t near : {length - apart, length + apart}) {  // below 0 it is above all
      if (near <= elements && near < powers && elements - near < powers && cells_[near][elements - near].count > 0) {
        return &cells_[near][elements - near];
      }
    }
  }
  return nullptr;
}

double RunCost::element(std::size_t length, std::size_t rows) const noexcept {
  constexpr std::uint64_t long_ago = 2048;  // runs
  constexpr double hoped = 0.9;             // of what is known
  const Cell& known = cells_[length][rows];
  if (known.count > 0) {
    return known.count > 1 && runs_ - known.last < long_ago ? known.element : hoped * known.element;
  }
  const std::size_t elements = length + rows;
  if (const Cell* const same = like(elements, length)) {
    return hoped * same->element;
  }
  const Cell* const half = elements < 1 ? nullptr : like(elements - 1, length);
  const Cell* const quarter = elements < 2 ? nullptr : like(elements - 2, length);
  if (half != nullptr && (quarter == nullptr || half->element <= quarter->element)) {
    return hoped * half->element;
  }
  return rows == 0 ? 1 : std::numeric_limits<double>::infinity();
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
