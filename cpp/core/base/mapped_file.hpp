#pragma once

#include <cstddef>

#include "core/base/file_io.hpp"

namespace ortmulti {

/// A file's bytes, mapped for reading; pages are read when they are touched.
class MappedFile {
 public:
  /// Throws Error with fail for a file that cannot be mapped. The mapping outlives the open file.
  explicit MappedFile(const InputFile& file);
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
