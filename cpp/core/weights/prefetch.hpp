#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace ortmulti {

/// Brings parts of files into memory in a thread of its own, in the order given, ahead of those who read them: one
/// sequential reader gets more out of a disk than many that jump. What is in memory already is passed without reading,
/// and what cannot be opened or read is passed too; its readers will say so.
class ReadAhead {
 public:
  struct Range {
    std::string path;
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
  };

  explicit ReadAhead(std::vector<Range> ranges);
  /// Stops at once, but for a read of 1 MiB that is under way.
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// Waits until the file was passed up to `end`, and returns true then. False, so that the caller reads by itself:
  /// `stop` was set, the file's part is in no range, or this process is a fork's child, which has no such thread.
  bool wait(const std::string& path, std::uint64_t end, const std::atomic<bool>& stop) const;

  /// Whether everything was passed.
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
