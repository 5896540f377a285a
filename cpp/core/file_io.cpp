#include "core/file_io.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "core/error.hpp"

namespace ortmulti {

InputFile::InputFile(const std::string& path) : path_(path), descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (descriptor_ < 0) {
    throw Error(ErrorKind::no_such_file, "cannot open '" + path + "': " + std::generic_category().message(errno));
  }
}

InputFile::~InputFile() { close(descriptor_); }

std::uint64_t InputFile::size() const {
  struct stat status{};
  if (fstat(descriptor_, &status) != 0) {
    fail(errno);
  }
  return static_cast<std::uint64_t>(status.st_size);
}

int InputFile::try_read(void* target, std::size_t size, std::uint64_t offset) const noexcept {
  auto* at = static_cast<unsigned char*>(target);
  while (size > 0) {
    const ssize_t count = pread(descriptor_, at, size, static_cast<off_t>(offset));
    if (count == 0) {
      return ENODATA;
    }
    if (count > 0) {
      at += count;
      offset += static_cast<std::uint64_t>(count);
      size -= static_cast<std::size_t>(count);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

void InputFile::read(void* target, std::size_t size, std::uint64_t offset) const {
  if (const int code = try_read(target, size, offset); code != 0) {
    fail(code);
  }
}

void InputFile::fail(int code) const {
  throw Error(ErrorKind::fail,
              "cannot read '" + path_ + "': " +
                  (code == ENODATA ? "it ends before what was asked for" : std::generic_category().message(code)));
}

}  // namespace ortmulti
