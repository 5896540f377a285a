#include "core/checksum.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "core/cores.hpp"
#include "core/file_io.hpp"

namespace ortmulti {
namespace {

// Blocks are hashed on their own, so that threads can share a file; their sums are chained.
constexpr std::size_t block_bytes = std::size_t{4} << 20U;

constexpr std::size_t lanes = 8;
constexpr std::array<std::uint64_t, lanes> lane_starts = {0x8F1BBCDC5A827999, 0x6ED9EBA1CA62C1D6, 0xD76AA478E8C7B756,
                                                          0x242070DBC1BDCEEE, 0xF57C0FAF4787C62A, 0xA8304613FD469501,
                                                          0x698098D88B44F7AF, 0xFFFF5BB1895CD7BE};
constexpr std::uint64_t multiplier = 0xD1342543DE82EF95;  // odd

// One to one in `state` and in `word`: a change of either alone is never lost.
std::uint64_t mix(std::uint64_t state, std::uint64_t word) noexcept {
  state = (state ^ word) * multiplier;
  return state << 29U | state >> 35U;
}

std::uint64_t block_checksum(const unsigned char* data, std::size_t size) noexcept {
  std::array<std::uint64_t, lanes> state = lane_starts;
  std::array<std::uint64_t, lanes> words{};
  std::size_t at = 0;
  for (; size - at >= sizeof words; at += sizeof words) {
    std::memcpy(words.data(), data + at, sizeof words);
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      state[lane] = mix(state[lane], words[lane]);
    }
  }
  if (at < size) {
    words = {};
    std::memcpy(words.data(), data + at, size - at);
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      state[lane] = mix(state[lane], words[lane]);
    }
  }
  std::uint64_t sum = size;
  for (const std::uint64_t lane : state) {
    sum = mix(sum ^ sum >> 32U, lane);
  }
  return sum;
}

// The sum of blocks that are added in their order.
class Chain {
 public:
  explicit Chain(std::uint64_t size) noexcept : size_(size), state_(size) {}
  void add(std::uint64_t block) noexcept { state_ = mix(state_, block); }
  std::uint64_t sum() const noexcept {
    const std::uint64_t mixed = mix(state_ ^ state_ >> 32U, size_);
    return mixed ^ mixed >> 29U;
  }

 private:
  std::uint64_t size_;
  std::uint64_t state_;
};

}  // namespace

std::uint64_t checksum(const void* data, std::size_t size) noexcept {
  const auto* bytes = static_cast<const unsigned char*>(data);
  Chain chain(size);
  for (std::size_t at = 0; at < size; at += block_bytes) {
    chain.add(block_checksum(bytes + at, std::min(block_bytes, size - at)));
  }
  return chain.sum();
}

std::uint64_t file_checksum(const std::string& path) {
  const InputFile file(path);
  const std::uint64_t size = file.size();
  std::vector<std::uint64_t> sums(static_cast<std::size_t>((size + block_bytes - 1) / block_bytes));
  std::atomic<std::size_t> next{0};
  std::atomic<int> problem{0};
  const auto work = [&](unsigned char* buffer) noexcept {
    for (std::size_t block = next++; block < sums.size() && problem == 0; block = next++) {
      const std::uint64_t offset = std::uint64_t{block} * block_bytes;
      const auto length = static_cast<std::size_t>(std::min<std::uint64_t>(block_bytes, size - offset));
      if (const int code = file.try_read(buffer, length, offset); code != 0) {
        problem = code;
      } else {
        sums[block] = block_checksum(buffer, length);
      }
    }
  };
  constexpr std::size_t most_threads = 8;
  const auto cores = static_cast<std::size_t>(std::max(usable_cores(), 1));
  const std::size_t count = std::max<std::size_t>(std::min({cores, most_threads, sums.size()}), 1);
  std::vector<std::unique_ptr<unsigned char[]>> buffers;
  for (std::size_t index = 0; index < count; ++index) {
    buffers.push_back(std::make_unique<unsigned char[]>(std::min<std::uint64_t>(block_bytes, size)));
  }
  std::vector<std::thread> threads;
  threads.reserve(count - 1);
  try {
    while (threads.size() + 1 < count) {
      threads.emplace_back(work, buffers[threads.size() + 1].get());
    }
  } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch): the others do it
  }
  work(buffers.front().get());
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (problem != 0) {
    file.fail(problem);
  }
  Chain chain(size);
  for (const std::uint64_t sum : sums) {
    chain.add(sum);
  }
  return chain.sum();
}

}  // namespace ortmulti
