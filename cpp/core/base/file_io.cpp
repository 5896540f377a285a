#include "core/base/file_io.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "core/base/error.hpp"

namespace ortmulti {

InputFile::InputFile(const std::string& path)
    : path_(path), descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {  // no wait for a FIFO's writer
  if (descriptor_ < 0) {
    throw Error(ErrorKind::no_such_file, "cannot open '" + path + "': " + std::generic_category().message(errno));
  }
  struct stat status{};
  if (fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(descriptor_);
    throw Error(ErrorKind::no_such_file, "'" + path + "' is not a regular file");
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

OutputFile::OutputFile(const std::string& path)
    : path_(path), descriptor_(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) {
  if (descriptor_ < 0) {
    kept_ = true;  // it is somebody else's
    fail(errno);
  }
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
  if (!kept_) {
    unlink(path_.c_str());
  }
}

void OutputFile::write(const void* data, std::size_t size) {
  const auto* at = static_cast<const unsigned char*>(data);
  while (size > 0) {
    // Linux writes no more at once.
    const ssize_t count = ::write(descriptor_, at, std::min<std::size_t>(size, 0x7FFFF000));
    if (count >= 0) {
      at += count;
      size -= static_cast<std::size_t>(count);
      size_ += static_cast<std::uint64_t>(count);
    } else if (errno != EINTR) {
      fail(errno);
    }
  }
}

void OutputFile::close() {
  const bool synced = fsync(descriptor_) == 0;
  const int code = errno;
  const int descriptor = std::exchange(descriptor_, -1);
  if (!synced) {
    ::close(descriptor);
    fail(code);
  }
  if (::close(descriptor) != 0) {  // some file systems report here what they could not write
    fail(errno);
  }
}

void OutputFile::fail(int code) const {
  throw Error(ErrorKind::fail, "cannot write '" + path_ + "': " + std::generic_category().message(code));
}

void sync_folder(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = descriptor >= 0 && (fsync(descriptor) == 0 || errno == EINVAL);  // EINVAL: not to be synced
  const int code = errno;
  if (descriptor >= 0) {
    close(descriptor);
  }
  if (!synced) {
    throw Error(ErrorKind::fail, "cannot write '" + path + "': " + std::generic_category().message(code));
  }
}

}  // namespace ortmulti
