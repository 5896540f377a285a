#include "core/base/hash.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "core/base/cpu_affinity.hpp"
#include "core/base/file.hpp"

namespace ortmulti {
namespace {

// Blocks are hashed on their own, so that threads can share a file; their sums are chained.
constexpr std::size_t block_bytes = std::size_t{4} << 20U;
// What is read at once; it stays in a core's cache until it is hashed.
constexpr std::size_t piece_bytes = std::size_t{128} << 10U;

constexpr std::size_t lanes = 8;
constexpr std::array<std::uint64_t, lanes> lane_starts = {0x8F1BBCDC5A827999, 0x6ED9EBA1CA62C1D6, 0xD76AA478E8C7B756,
                                                          0x242070DBC1BDCEEE, 0xF57C0FAF4787C62A, 0xA8304613FD469501,
                                                          0x698098D88B44F7AF, 0xFFFF5BB1895CD7BE};
constexpr std::uint64_t word_factor = 0xD1342543DE82EF95;  // both odd
constexpr std::uint64_t state_factor = 0x9FB21C651E98DF25;

// One to one in `state` and in `word`: a change of either alone is never lost. With one factor alone, a change of a
// word's highest bit would be undone by that of one bit of the next word.
std::uint64_t mix(std::uint64_t state, std::uint64_t word) noexcept {
  state ^= word * word_factor;
  return (state << 31U | state >> 33U) * state_factor;
}

// The sum of one block, given piece by piece; only the last piece may be no whole number of `width`.
class BlockSum {
 public:
  static constexpr std::size_t width = lanes * sizeof(std::uint64_t);

  void add(const unsigned char* data, std::size_t size) noexcept {
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

  std::array<std::uint64_t, lanes> state_ = lane_starts;
  std::uint64_t size_ = 0;
};

}  // namespace

std::uint64_t file_checksum(const std::string& path, const std::atomic<bool>* stop) {
  const InputFile file(path);
  const std::uint64_t size = file.size();
  std::vector<std::uint64_t> sums(static_cast<std::size_t>((size + block_bytes - 1) / block_bytes));
  std::atomic<std::size_t> next{0};
  std::atomic<int> problem{0};
  const auto work = [&](unsigned char* buffer) noexcept {
    for (std::size_t block = next++; block < sums.size() && problem == 0; block = next++) {
      const std::uint64_t begin = std::uint64_t{block} * block_bytes;
      const std::uint64_t end = std::min(begin + block_bytes, size);
      BlockSum sum;
      for (std::uint64_t at = begin; at < end; at += piece_bytes) {
        const auto length = static_cast<std::size_t>(std::min<std::uint64_t>(piece_bytes, end - at));
        const bool stopped = stop != nullptr && *stop;
        if (const int code = stopped ? ECANCELED : file.try_read(buffer, length, at).error; code != 0) {
          problem = code;
          break;
        }
        sum.add(buffer, length);
      }
      sums[block] = sum.sum();
    }
  };
  constexpr std::size_t most_threads = 8;
  const auto cores = static_cast<std::size_t>(std::max(usable_cores(), 1));
  const std::size_t count = std::max<std::size_t>(std::min({cores, most_threads, sums.size()}), 1);
  std::vector<unsigned char> buffers(count * piece_bytes);
  std::vector<std::thread> threads;
  threads.reserve(count - 1);
  try {
    while (threads.size() + 1 < count) {
      threads.emplace_back(work, buffers.data() + (threads.size() + 1) * piece_bytes);
    }
  } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch): the others do it
  }
  work(buffers.data());
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (problem != 0) {
    file.fail(problem);
  }
  std::uint64_t state = size;
  for (const std::uint64_t sum : sums) {
    state = mix(state, sum);
  }
  state = mix(state ^ state >> 32U, size);
  return state ^ state >> 29U;
}

}  // namespace ortmulti
