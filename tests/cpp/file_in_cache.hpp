#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/base/source.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {

/// A file on a disk, of bytes that differ from place to place, whose pages the test throws out and counts.
class FileInCache {
 public:
  FileInCache(const TemporaryFolder& folder, const std::string& name, std::size_t size) {
    std::string text(size, '\0');
    for (std::size_t i = 0; i < size; ++i) {
      text[i] = static_cast<char>(i * 31 + i / 4096);
    }
    path_ = folder.write(name, text);
    descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    fsync(descriptor_);
    source_ = file_source(path_);
  }
  ~FileInCache() { close(descriptor_); }
  FileInCache(const FileInCache&) = delete;
  FileInCache& operator=(const FileInCache&) = delete;

  const std::shared_ptr<const Source>& source() const noexcept { return source_; }
  int descriptor() const noexcept { return descriptor_; }

  /// Throws pages out (page-aligned; length 0: to the end). False on file systems that keep them.
  bool evict(std::size_t offset = 0, std::size_t length = 0) const {
    fsync(descriptor_);
    posix_fadvise(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(length), POSIX_FADV_DONTNEED);
    return resident(offset, length) == 0;
  }

  /// Pages that are in memory.
  std::size_t resident(std::size_t offset = 0, std::size_t length = 0) const {
    struct stat status{};
    fstat(descriptor_, &status);
    const std::size_t size = length == 0 ? static_cast<std::size_t>(status.st_size) - offset : length;
    std::vector<unsigned char> pages((size + 4095) / 4096);
    void* mapping = mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor_, static_cast<off_t>(offset));
    mincore(mapping, size, pages.data());
    munmap(mapping, size);
    return static_cast<std::size_t>(
        std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1U) != 0; }));
  }

 private:
  std::string path_;
  int descriptor_;
  std::shared_ptr<const Source> source_;
};

}  // namespace ortmulti::tests
