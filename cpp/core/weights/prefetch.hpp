#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/source.hpp"

namespace ortmulti {

/// Reads parts of sources that are files into the page cache, in a thread of its own and in the given order. One
/// sequential reader gets more out of a disk than many that jump. Parts that are in memory already, or cannot be read,
/// are skipped: later readers report errors.
class Prefetch : NonCopyable {
 public:
  struct Range {
    std::shared_ptr<const Source> source;
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
  };

  explicit Prefetch(std::vector<Range> ranges);
  /// Stops at once, but for a read of 1 MiB that is under way.
  ~Prefetch();

  /// Waits until the source was passed up to `end`, and returns true then. False, so that the caller reads by itself:
  /// `stop` was set, the source's part is in no range, or this process is a fork's child, which has no such thread.
  bool wait(const Source& source, std::uint64_t end, const std::atomic<bool>& stop) const;

  bool finished() const noexcept;
  /// Bytes that were read so far rather than passed.
  std::uint64_t bytes_read() const noexcept;

 private:
  struct State;
  bool inherited() const noexcept;

  std::unique_ptr<State> state_;
  unsigned generation_;
};

}  // namespace ortmulti
