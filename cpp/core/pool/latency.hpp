#pragma once

#include <array>
#include <cstdint>

namespace ortmulti {

/// How long things took: counts in buckets whose width is at most 1/32 of what they hold, from 1 ns to 9 hours, so that
/// a quantile is right to 3%. Memory of a fixed size (11 KiB); not for several threads at once.
class LatencyHistogram {
 public:
  /// Below 0 counts as 0, above 9 hours as 9 hours.
  void record(std::int64_t nanoseconds) noexcept;
  void merge(const LatencyHistogram& other) noexcept;

  std::uint64_t count() const noexcept { return count_; }
  std::int64_t sum_ns() const noexcept { return sum_ns_; }
  std::int64_t max_ns() const noexcept { return max_ns_; }
  /// The time that the part `q` (0 to 1) of them did not exceed, at most max_ns(); 0 where nothing was recorded.
  std::int64_t quantile_ns(double q) const noexcept;

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

}  // namespace ortmulti
