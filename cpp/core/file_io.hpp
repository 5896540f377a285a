#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ortmulti {

/// A file open for reading at any position, from any thread; every failure is an Error that names it.
class InputFile {
 public:
  /// Throws Error with no_such_file.
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const noexcept { return path_; }
  int descriptor() const noexcept { return descriptor_; }
  std::uint64_t size() const;

  /// Reads exactly `size` bytes; the error's number, ENODATA where the file ends before, or 0.
  int try_read(void* target, std::size_t size, std::uint64_t offset) const noexcept;
  /// The same, with an Error.
  void read(void* target, std::size_t size, std::uint64_t offset) const;
  [[noreturn]] void fail(int code) const;

 private:
  std::string path_;
  int descriptor_;
};

}  // namespace ortmulti
