#include "core/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "core/error.hpp"

namespace ortmulti {

MappedFile::MappedFile(const std::string& path) {
  const auto reason = [] { return std::generic_category().message(errno); };
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    throw Error(ErrorKind::no_such_file, "cannot open '" + path + "': " + reason());
  }
  struct stat status{};
  void* mapping = MAP_FAILED;
  const bool known = fstat(descriptor, &status) == 0;
  if (known && status.st_size > 0) {
    size_ = static_cast<std::size_t>(status.st_size);
    mapping = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
  }
  const std::string problem = !known || (size_ > 0 && mapping == MAP_FAILED) ? reason() : "";
  close(descriptor);
  if (!problem.empty()) {
    throw Error(ErrorKind::fail, "cannot map '" + path + "': " + problem);
  }
  if (size_ > 0) {
    data_ = static_cast<const unsigned char*>(mapping);
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    munmap(const_cast<unsigned char*>(data_), size_);  // NOLINT(cppcoreguidelines-pro-type-const-cast): munmap's type
  }
}

}  // namespace ortmulti
