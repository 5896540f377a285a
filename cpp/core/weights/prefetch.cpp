#include "core/weights/prefetch.hpp"

#include <fcntl.h>

#include <algorithm>
#include <condition_variable>
#include <limits>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/base/fork.hpp"
#include "core/base/page_cache.hpp"

namespace ortmulti {
namespace {

constexpr std::uint64_t block_bytes = 8U << 20U;
constexpr std::uint64_t read_bytes = 1U << 20U;  // the buffer stays in the processor's cache
// After a block that was not there this much is read without asking: the kernel's own reading ahead makes parts of the
// next blocks look like all of them, and copying what is there costs little.
constexpr std::uint64_t unasked_bytes = 64U << 20U;
// The kernel is told of this much before it is read: disks of virtual machines, which are many, give half as much again
// when they have more to do at a time (3.0 and 4.2 GB/s where this was measured).
constexpr std::uint64_t announced_bytes = 128U << 20U;
constexpr std::uint64_t joined_gap = 64U << 10U;

// Null for what cannot be opened or is no file.
std::shared_ptr<const InputFile> try_open(const Source& source) {
  try {
    auto file = source.open();
    if (file) {
      static_cast<void>(posix_fadvise(file->descriptor(), 0, 0, POSIX_FADV_SEQUENTIAL));
    }
    return file;
  } catch (const Error&) {
    return nullptr;
  }
}

// The same parts in the same order, neighbours as one: models have thousands of small tensors side by side.
std::vector<Prefetch::Range> joined(std::vector<Prefetch::Range> ranges) {
  std::vector<Prefetch::Range> result;
  for (Prefetch::Range& range : ranges) {
    range.length = std::min(range.length, std::numeric_limits<std::uint64_t>::max() - range.offset);
    if (range.length == 0) {
      continue;
    }
    if (!result.empty() && result.back().source == range.source) {
      Prefetch::Range& last = result.back();
      const std::uint64_t end = last.offset + last.length;
      if (range.offset >= last.offset && (range.offset <= end || range.offset - end <= joined_gap)) {
        last.length = std::max(end, range.offset + range.length) - last.offset;
        continue;
      }
    }
    result.push_back(std::move(range));
  }
  return result;
}

}  // namespace

// In one piece, because a forked child can only leave it alone: neither the thread nor those who wait exist there.
struct Prefetch::State {
  explicit State(std::vector<Range> all) : ranges(joined(std::move(all))) {
    std::uint64_t before = 0;
    for (Range& range : ranges) {
      // Sparse files may add up to more than 64 bits hold. The rest is left to its readers.
      range.length = std::min(range.length, std::numeric_limits<std::uint64_t>::max() - before);
      sources[range.source->identity()].push_back({range.offset, range.length, before});
      before += range.length;
    }
    total = before;
    for (auto& [identity, parts] : sources) {
      std::ranges::sort(parts, {}, &Part::offset);
    }
  }

  void run(const std::stop_token& stop) {
    std::uint64_t before = 0;
    std::shared_ptr<const InputFile> file;
    for (std::size_t i = 0; i < ranges.size() && !stop.stop_requested(); ++i) {
      if (i == 0 || ranges[i].source != ranges[i - 1].source) {
        file = try_open(*ranges[i].source);
      }
      if (file) {
        bring(*file, ranges[i], before, stop);
      }
      before += ranges[i].length;
      pass(before);
    }
    pass(total);  // whoever still waits when it is stopped
  }

  // `before`: bytes of the ranges that come before this one.
  void bring(const InputFile& file, const Range& range, std::uint64_t before, const std::stop_token& stop) {
    const std::uint64_t size = range.source->size();
    const std::uint64_t length = std::min(range.length, size - std::min(size, range.offset));
    std::uint64_t unasked_until = 0;
    std::uint64_t announced = 0;
    for (std::uint64_t done = 0; done < length && !stop.stop_requested();) {
      const std::uint64_t block = std::min(block_bytes, length - done);
      if (done >= unasked_until) {
        if (residency(file.descriptor(), range.offset + done, block) == Residency::resident) {
          done += block;
          pass(before + done);
          continue;
        }
        unasked_until = done + unasked_bytes;
      }
      for (announced = std::max(announced, done); announced < std::min(length, done + announced_bytes);
           announced += block_bytes) {
        static_cast<void>(posix_fadvise(file.descriptor(), static_cast<off_t>(range.offset + announced),
                                        static_cast<off_t>(std::min(block_bytes, length - announced)),
                                        POSIX_FADV_WILLNEED));
      }
      for (const std::uint64_t end = done + block; done < end && !stop.stop_requested();) {
        const auto wanted = static_cast<std::size_t>(std::min(read_bytes, end - done));
        const std::size_t count = file.try_read(buffer.data(), wanted, range.offset + done).bytes;
        done += count;
        read.fetch_add(count);
        pass(before + done);
        if (count < wanted) {
          return;
        }
      }
    }
  }

  void pass(std::uint64_t bytes) {
    const std::lock_guard lock(mutex);
    passed.store(bytes);
    moved.notify_all();
  }

  struct Part {
    std::uint64_t offset, length, before;
  };
  std::vector<Range> ranges;
  std::map<std::string, std::vector<Part>> sources;  ///< By identity.
  std::uint64_t total = 0;
  std::vector<char> buffer = std::vector<char>(read_bytes);
  std::atomic<std::uint64_t> read{0};
  std::atomic<std::uint64_t> passed{0};  ///< Bytes of all ranges, in their order. Grows.
  std::mutex mutex;
  std::condition_variable_any moved;
  std::jthread thread;  ///< Ends first.
};

Prefetch::Prefetch(std::vector<Range> ranges)
    : state_(std::make_unique<State>(std::move(ranges))), generation_(fork_generation()) {
  try {
    state_->thread = std::jthread([state = state_.get()](const std::stop_token& stop) {
      try {
        state->run(stop);
      } catch (...) {  // no memory for a path: nothing is read ahead
        state->pass(state->total);
      }
    });
  } catch (const std::system_error&) {    // no thread to be had: readers read by themselves
    state_->passed.store(state_->total);  // without the lock: nobody waits yet, and the caller may hold the GIL
  }
}

Prefetch::~Prefetch() {
  if (inherited()) {
    static_cast<void>(state_.release());  // NOLINT(bugprone-unused-return-value): lost on purpose
  }
}

bool Prefetch::wait(const Source& source, std::uint64_t end, const std::stop_token& stop) const {
  if (inherited()) {
    return false;
  }
  const auto found = state_->sources.find(source.identity());
  if (found == state_->sources.end()) {
    return false;
  }
  // The last part that begins before `end`.
  const std::vector<State::Part>& parts = found->second;
  auto part = std::ranges::lower_bound(parts, end, {}, &State::Part::offset);
  if (part == parts.begin()) {
    return false;
  }
  --part;
  const std::uint64_t target = part->before + std::min(end - part->offset, part->length);
  const auto passed = [&] { return state_->passed.load() >= target; };
  if (passed()) {
    return true;
  }
  std::unique_lock lock(state_->mutex);
  return state_->moved.wait(lock, stop, passed);
}

bool Prefetch::finished() const noexcept { return state_->passed.load() == state_->total; }

std::uint64_t Prefetch::bytes_read() const noexcept { return state_->read.load(); }

bool Prefetch::inherited() const noexcept { return generation_ != fork_generation(); }

}  // namespace ortmulti
