#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ortmulti {

/// How long things took: counts in buckets whose width is at most 1/32 of what they hold, from 1 ns to 9 hours, so that
/// a quantile is right to 3%. Memory of a fixed size (11 KiB); not for several threads at once.
class LatencyHistogram {
 public:
  /// Below 0 counts as 0, above 9 hours as 9 hours.
  void record(std::int64_t nanoseconds) noexcept;
  LatencyHistogram& operator+=(const LatencyHistogram& other) noexcept;

  std::uint64_t count() const noexcept { return count_; }
  std::int64_t sum_ns() const noexcept { return sum_ns_; }
  std::int64_t max_ns() const noexcept { return max_ns_; }
  /// The time that the part `q` (0 to 1) of them did not exceed, at most max_ns(); 0 where nothing was recorded.
  std::int64_t quantile_ns(double q) const noexcept;
  /// For each of these ascending bounds how many did not exceed it. One that is up to 3% below a bound may count as
  /// above it.
  std::vector<std::uint64_t> counts_up_to(const std::vector<std::int64_t>& bounds_ns) const;

 private:
  static constexpr int sub_bits = 5;
  static constexpr int highest_bit = 44;  // 2^45 ns are 9.8 hours
  static constexpr int buckets = (highest_bit - sub_bits + 2) << sub_bits;

  static int bucket_of(std::uint64_t nanoseconds) noexcept;
  static std::uint64_t upper_bound(int bucket) noexcept;

  std::array<std::uint64_t, buckets> counts_{};
  std::uint64_t count_ = 0;
  std::int64_t sum_ns_ = 0;
  std::int64_t max_ns_ = 0;
};

/// How many requests ran together: counts up to powers of two. Not for several threads at once.
class SizeHistogram {
 public:
  static constexpr int bounds = 11;  ///< 1, 2, 4, and so on up to 1024.

  void record(std::size_t size) noexcept;
  SizeHistogram& operator+=(const SizeHistogram& other) noexcept;

  std::uint64_t count() const noexcept;
  std::uint64_t sum() const noexcept { return sum_; }
  /// For each bound how many did not exceed it.
  std::array<std::uint64_t, bounds> counts_up_to_bounds() const noexcept;

 private:
  std::array<std::uint64_t, bounds + 1> counts_{};  // the last: above all bounds
  std::uint64_t sum_ = 0;
};

}  // namespace ortmulti
