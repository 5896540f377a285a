#include "core/pool/latency.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

namespace ortmulti {

int LatencyHistogram::bucket_of(std::uint64_t nanoseconds) noexcept {
  constexpr std::uint64_t exact = std::uint64_t{1} << sub_bits;
  if (nanoseconds < exact) {
    return static_cast<int>(nanoseconds);
  }
  const int shift = static_cast<int>(std::bit_width(nanoseconds)) - 1 - sub_bits;
  const auto within = static_cast<int>((nanoseconds >> shift) & (exact - 1));
  return ((shift + 1) << sub_bits) + within;
}

std::uint64_t LatencyHistogram::upper_bound(int bucket) noexcept {
  constexpr int exact = 1 << sub_bits;
  if (bucket < exact) {
    return static_cast<std::uint64_t>(bucket);
  }
  const int shift = (bucket >> sub_bits) - 1;
  const auto mantissa = static_cast<std::uint64_t>((bucket & (exact - 1)) | exact);
  return ((mantissa + 1) << shift) - 1;
}

void LatencyHistogram::record(std::int64_t nanoseconds) noexcept {
  constexpr std::int64_t most = (std::int64_t{1} << (highest_bit + 1)) - 1;
  const std::int64_t kept = std::clamp<std::int64_t>(nanoseconds, 0, most);
  ++counts_[static_cast<std::size_t>(bucket_of(static_cast<std::uint64_t>(kept)))];
  ++count_;
  sum_ns_ += kept;
  max_ns_ = std::max(max_ns_, kept);
}

LatencyHistogram& LatencyHistogram::operator+=(const LatencyHistogram& other) noexcept {
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    counts_[i] += other.counts_[i];
  }
  count_ += other.count_;
  sum_ns_ += other.sum_ns_;
  max_ns_ = std::max(max_ns_, other.max_ns_);
  return *this;
}

std::int64_t LatencyHistogram::quantile_ns(double q) const noexcept {
  if (count_ == 0) {
    return 0;
  }
  const double wanted = std::ceil(std::clamp(q, 0.0, 1.0) * static_cast<double>(count_));
  const auto rank = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(wanted));
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    seen += counts_[i];
    if (seen >= rank) {
      return std::min(max_ns_, static_cast<std::int64_t>(upper_bound(static_cast<int>(i))));
    }
  }
  return max_ns_;
}

std::vector<std::uint64_t> LatencyHistogram::counts_up_to(const std::vector<std::int64_t>& bounds_ns) const {
  std::vector<std::uint64_t> result;
  result.reserve(bounds_ns.size());
  std::uint64_t seen = 0;
  std::size_t bucket = 0;
  for (const std::int64_t bound : bounds_ns) {
    for (; bucket < counts_.size() && upper_bound(static_cast<int>(bucket)) <= static_cast<std::uint64_t>(bound);
         ++bucket) {
      seen += counts_[bucket];
    }
    result.push_back(seen);
  }
  return result;
}

void SizeHistogram::record(std::size_t size) noexcept {
  std::size_t index = 0;
  while (index < bounds && (std::size_t{1} << index) < size) {
    ++index;
  }
  ++counts_[index];
  sum_ += size;
}

SizeHistogram& SizeHistogram::operator+=(const SizeHistogram& other) noexcept {
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    counts_[i] += other.counts_[i];
  }
  sum_ += other.sum_;
  return *this;
}

std::uint64_t SizeHistogram::count() const noexcept {
  return std::accumulate(counts_.begin(), counts_.end(), std::uint64_t{0});
}

std::array<std::uint64_t, SizeHistogram::bounds> SizeHistogram::counts_up_to_bounds() const noexcept {
  std::array<std::uint64_t, bounds> result{};
  std::partial_sum(counts_.begin(), counts_.end() - 1, result.begin());
  return result;
}

}  // namespace ortmulti
