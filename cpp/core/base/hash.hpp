#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace ortmulti {

/// One step of a hash, one to one in `state` and in `word`: a change of either alone is never lost. With one factor
/// alone, a change of a word's highest bit would be undone by that of one bit of the next word.
constexpr std::uint64_t mix(std::uint64_t state, std::uint64_t word) noexcept {
  state ^= word * 0xD1342543DE82EF95;  // both factors are odd
  return std::rotl(state, 31) * 0x9FB21C651E98DF25;
}

/// 64 bits of bytes, given piece by piece; only the last piece may be no whole number of `width`. Hashes with other
/// seeds are others. Against damage and chance, not against intent.
class Hash {
 public:
  static constexpr std::size_t lanes = 8;
  static constexpr std::size_t width = lanes * sizeof(std::uint64_t);

  explicit Hash(std::uint64_t seed = 0) noexcept {
    for (std::uint64_t& lane : state_) {
      lane ^= seed;
    }
  }

  void add(const void* bytes, std::size_t size) noexcept {
    const auto* data = static_cast<const unsigned char*>(bytes);
    std::array<std::uint64_t, lanes> words{};
    size_ += size;
    for (; size >= width; data += width, size -= width) {
      std::memcpy(words.data(), data, width);
      add(words);
    }
    if (size > 0) {
      words = {};
      std::memcpy(words.data(), data, size);
      add(words);
    }
  }

  std::uint64_t sum() const noexcept {
    std::uint64_t sum = size_;
    for (const std::uint64_t lane : state_) {
      sum = mix(sum ^ sum >> 32U, lane);
    }
    return sum;
  }

 private:
  void add(const std::array<std::uint64_t, lanes>& words) noexcept {
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      state_[lane] = mix(state_[lane], words[lane]);
    }
  }

  std::array<std::uint64_t, lanes> state_ = {0x8F1BBCDC5A827999, 0x6ED9EBA1CA62C1D6, 0xD76AA478E8C7B756,
                                             0x242070DBC1BDCEEE, 0xF57C0FAF4787C62A, 0xA8304613FD469501,
                                             0x698098D88B44F7AF, 0xFFFF5BB1895CD7BE};
  std::uint64_t size_ = 0;
};

}  // namespace ortmulti
