#include "core/base/source.hpp"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <system_error>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/file.hpp"

namespace ortmulti {
namespace {

// A range without bytes has this address.
constexpr unsigned char nothing = 0;

std::string nanoseconds(const timespec& time) {
  constexpr std::int64_t second = 1'000'000'000;
  return std::to_string(time.tv_sec * second + time.tv_nsec) + " ns";
}

// A program can set the time of modification back, but not that of the last change. No device number: each container
// sees another one for the same file of an image, and some file systems have another one after each mount.
std::string file_identity(const std::string& path, const struct stat& status) {
  return path + " (" + std::to_string(status.st_size) + " bytes, inode " + std::to_string(status.st_ino) +
         ", modified at " + nanoseconds(status.st_mtim) + ", changed at " + nanoseconds(status.st_ctim) + ")";
}

// chmod, chown and a further link set the time of the last change, too. They must not end a load, or keep weights that
// sleep from waking.
bool same_content(const struct stat& one, const struct stat& other) {
  return one.st_size == other.st_size && one.st_ino == other.st_ino && one.st_mtim.tv_sec == other.st_mtim.tv_sec &&
         one.st_mtim.tv_nsec == other.st_mtim.tv_nsec;
}

Error changed(const Source& source) {
  return Error(ErrorKind::weights, "'" + source.name() + "' was changed or replaced while it was loaded; load again");
}

class FileSource : public Source {
 public:
  FileSource(const std::string& path, const struct stat& status)
      : Source(path, file_identity(path, status), static_cast<std::uint64_t>(status.st_size)), status_(status) {}

  bool unchanged() const override {
    struct stat status{};
    return lstat(name().c_str(), &status) == 0 && S_ISREG(status.st_mode) && same_content(status, status_);
  }

  std::shared_ptr<const unsigned char> map() const override {
    const auto file = open();
    const auto bytes = static_cast<std::size_t>(size());
    if (bytes == 0) {
      return {file, &nothing};
    }
    void* const mapping = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file->descriptor(), 0);
    if (mapping == MAP_FAILED) {
      throw Error(ErrorKind::fail, "cannot map '" + name() + "': " + std::generic_category().message(errno));
    }
    // It outlives the open file.
    return {static_cast<const unsigned char*>(mapping),
            [mapping, bytes](const unsigned char*) { munmap(mapping, bytes); }};
  }

  std::shared_ptr<const InputFile> open() const override {
    const std::lock_guard lock(mutex_);
    auto file = open_.lock();
    if (!file) {
      try {
        file = std::make_shared<const InputFile>(name());
      } catch (const Error& error) {
        throw Error(ErrorKind::weights, error.what());
      }
      struct stat status{};
      if (fstat(file->descriptor(), &status) != 0 || !same_content(status, status_)) {
        throw changed(*this);
      }
      open_ = file;
    }
    return file;
  }

 private:
  void read_range(void* target, std::uint64_t size, std::uint64_t offset) const override {
    const auto [bytes, error] = open()->try_read(target, size, offset);
    if (error == ENODATA) {
      throw Error(ErrorKind::weights, "'" + name() + "' ends at byte " + std::to_string(offset + bytes) +
                                          ": it was shortened while it was loaded; load again");
    }
    if (error != 0) {
      throw Error(ErrorKind::weights, "reading '" + name() + "' at byte " + std::to_string(offset + bytes) +
                                          " failed: " + std::generic_category().message(error));
    }
  }

  const struct stat status_;
  mutable std::mutex mutex_;
  mutable std::weak_ptr<const InputFile> open_;
};

class MemorySource : public Source {
 public:
  MemorySource(const std::string& name, std::shared_ptr<const unsigned char> bytes, std::uint64_t size,
               const std::string& identity)
      : Source(name,
               !identity.empty() ? identity
                                 : name + " (" + std::to_string(size) + " bytes at " +
                                       std::to_string(reinterpret_cast<std::uintptr_t>(bytes.get())) + ")",
               size),
        bytes_(std::move(bytes)) {}

  std::shared_ptr<const unsigned char> map() const override {
    return bytes_ ? bytes_ : std::shared_ptr<const unsigned char>(std::shared_ptr<void>(), &nothing);
  }

 private:
  void read_range(void* target, std::uint64_t size, std::uint64_t offset) const override {
    std::memcpy(target, bytes_.get() + offset, size);
  }

  std::shared_ptr<const unsigned char> bytes_;
};

}  // namespace

Source::Source(std::string name, std::string identity, std::uint64_t size)
    : name_(std::move(name)), identity_(std::move(identity)), size_(size) {}

void Source::read(void* target, std::uint64_t size, std::uint64_t offset) const {
  if (!has(size, offset)) {
    throw Error(ErrorKind::weights, "'" + name_ + "' has " + std::to_string(size_) + " bytes, and " +
                                        std::to_string(size) + " from " + std::to_string(offset) +
                                        " are needed; check the model's external data");
  }
  if (size > 0) {
    read_range(target, size, offset);
  }
}

void Source::check() const {
  if (!unchanged()) {
    throw changed(*this);
  }
}

std::shared_ptr<const Source> file_source(const std::string& path) {
  const auto [real, status] = stat_regular(path);
  return std::make_shared<const FileSource>(real, status);
}

std::shared_ptr<const Source> memory_source(const std::string& name, std::shared_ptr<const unsigned char> bytes,
                                            std::uint64_t size, const std::string& identity) {
  return std::make_shared<const MemorySource>(name, std::move(bytes), size, identity);
}

}  // namespace ortmulti
