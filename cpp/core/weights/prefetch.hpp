#pragma once

#include <cstdint>
#include <memory>
#include <stop_token>
#include <vector>

#include "core/base/source.hpp"

namespace ortmulti {

/// Reads ranges of files into the page cache, in a thread of its own and in the given order. One sequential reader gets
/// more out of a disk than many that jump. It skips ranges that are in memory already, or cannot be read: later readers
/// report errors.
class Prefetch : NonCopyable {
 public:
  struct Range {
    std::shared_ptr<const Source> source;
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
  };

  explicit Prefetch(std::vector<Range> ranges);
  /// Stops after at most one more read of 1 MiB.
  ~Prefetch();

  /// Waits until the thread has passed `end` in the source, and returns true. False, so that the caller reads by
  /// itself: after a request to stop, if no range has this part of the source, or in a forked child, which does not
  /// have the thread.
  bool wait(const Source& source, std::uint64_t end, const std::stop_token& stop) const;

  bool finished() const noexcept;
  /// Bytes that the thread has read, not skipped.
  std::uint64_t bytes_read() const noexcept;

 private:
  struct State;
  bool inherited() const noexcept;

  std::unique_ptr<State> state_;
  unsigned generation_;
};

}  // namespace ortmulti
