#include "core/base/mapped_file.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <system_error>

#include "core/base/error.hpp"

namespace ortmulti {

MappedFile::MappedFile(const InputFile& file) : size_(static_cast<std::size_t>(file.size())) {
  if (size_ == 0) {
    return;
  }
  void* mapping = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (mapping == MAP_FAILED) {
    throw Error(ErrorKind::fail, "cannot map '" + file.path() + "': " + std::generic_category().message(errno));
  }
  data_ = static_cast<const unsigned char*>(mapping);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    munmap(const_cast<unsigned char*>(data_), size_);  // NOLINT(cppcoreguidelines-pro-type-const-cast): munmap's type
  }
}

}  // namespace ortmulti
