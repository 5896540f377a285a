#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <string>

namespace ortmulti {

/// 64 bits that differ where bytes do: always for one changed word, by chance of 2^-64 otherwise. Against damage, not
/// against intent.
std::uint64_t checksum(const void* data, std::size_t size) noexcept;

/// The same of a file's content, read by a few threads. Throws Error: no_such_file, or fail for what cannot be read, or
/// soon after `*stop` was set.
std::uint64_t file_checksum(const std::string& path, const std::atomic<bool>* stop = nullptr);

/// The same beside the caller, in a thread. Where none can start, take() computes it.
class FileChecksum {
 public:
  explicit FileChecksum(std::string path);
  /// Gives up: waits until the thread has ended, after its next piece of the file.
  ~FileChecksum();
  FileChecksum(const FileChecksum&) = delete;
  FileChecksum& operator=(const FileChecksum&) = delete;

  /// Waits at most `timeout`; whether take() returns at once, or computes.
  bool wait(std::chrono::milliseconds timeout) const;
  std::uint64_t take();

 private:
  std::string path_;
  std::atomic<bool> stop_{false};
  std::future<std::uint64_t> sum_;  // waits for its thread when it is freed
};

}  // namespace ortmulti
