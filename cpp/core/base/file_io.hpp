#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ortmulti {

/// A regular file open for reading at any position, from any thread; every failure is an Error that names it.
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

/// A new file, of which there must be none; every failure is an Error that names it. One that was not kept is removed.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const noexcept { return path_; }
  /// Bytes written so far.
  std::uint64_t size() const noexcept { return size_; }
  void write(const void* data, std::size_t size);
  /// Puts it on the disk. Nothing is written afterwards.
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

/// Puts on the disk which files a folder has. Throws Error.
void sync_folder(const std::string& path);

}  // namespace ortmulti
