#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "core/base/non_copyable.hpp"

namespace ortmulti {

/// A regular file open for reading at any position, from any thread. Opening waits for no FIFO. An Error names the
/// file.
class InputFile : NonCopyable {
 public:
  /// Throws Error with no_such_file.
  explicit InputFile(const std::string& path);
  ~InputFile();

  const std::string& path() const noexcept { return path_; }
  int descriptor() const noexcept { return descriptor_; }
  std::uint64_t size() const;

  struct ReadResult {
    std::size_t bytes = 0;
    int error = 0;  ///< errno; ENODATA if the file ends before `size` bytes; 0 if all were read.
  };
  /// Reads `size` bytes.
  ReadResult try_read(void* target, std::size_t size, std::uint64_t offset) const noexcept;
  [[noreturn]] void fail(int code) const;

 private:
  std::string path_;
  int descriptor_;
};

/// A new file, of which there must be none; every failure is an Error that names it. One that was not kept is removed.
class OutputFile : NonCopyable {
 public:
  explicit OutputFile(const std::string& path);
  ~OutputFile();

  const std::string& path() const noexcept { return path_; }
  /// Bytes written so far.
  std::uint64_t size() const noexcept { return size_; }
  void write(const void* data, std::size_t size);
  /// Reports what could not be written. Nothing is written afterwards.
  void close();
  /// It stays when the object goes.
  void keep() noexcept { kept_ = true; }

 private:
  [[noreturn]] void fail(int code) const;

  std::string path_;
  int descriptor_;
  std::uint64_t size_ = 0;
  bool kept_ = false;
};

/// open(2) that waits for no FIFO: a descriptor for the caller to close, or -1 with errno set.
int open_nonblocking(const std::string& path, int flags) noexcept;

/// The same of a path that is no symbolic link.
int open_nofollow(const std::string& path, int flags) noexcept;

/// The folder of the file that a path names; "." for a mere name.
std::string folder_of(const std::string& path);

/// A path without symbolic links and relative parts; empty if there is no such file.
std::string real_path(const std::string& path);

/// A path without symbolic links and the status of the regular file that it leads to, both of one moment. Opens no
/// device and waits for no FIFO. Throws Error with no_such_file.
std::pair<std::string, struct stat> stat_regular(const std::string& path);

/// The text of one of the kernel's small files (at most 1 MB); empty if it cannot be read. Does not use iostreams:
/// their locales misbehave where a host links libstdc++ into each library anew.
std::string read_small_file(const std::string& path);

/// 64 bits that differ where a file's bytes do: always for one changed word, by chance of 2^-64 otherwise. Against
/// damage, not against intent. The file is read by a few threads. Throws Error: no_such_file, or fail for what cannot
/// be read, or soon after a request to stop.
std::uint64_t file_checksum(const std::string& path, const std::stop_token& stop = {});

/// The parts of a text between the separators that are not empty.
std::vector<std::string> split_words(const std::string& text, const char* separators = " \t\n");

}  // namespace ortmulti
