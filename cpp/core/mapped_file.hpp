#pragma once

#include <cstddef>
#include <string>

namespace ortmulti {

/// A file's bytes, mapped for reading; pages are read when they are touched.
class MappedFile {
 public:
  /// Throws Error: no_such_file, or fail for what cannot be mapped.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const unsigned char* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

 private:
  const unsigned char* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace ortmulti
