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

// Of no bytes: an address all the same.
constexpr unsigned char nothing = 0;

std::string file_identity(const std::string& path, const struct stat& status) {
  constexpr std::int64_t second = 1'000'000'000;
  return path + " (" + std::to_string(status.st_size) + " bytes, inode " + std::to_string(status.st_ino) +
         ", modified at " + std::to_string(status.st_mtim.tv_sec * second + status.st_mtim.tv_nsec) + " ns)";
}

Error changed(const Source& source) {
  return Error(ErrorKind::weights, "'" + source.name() + "' was changed or replaced while it was loaded; load again");
}

class FileSource : public Source {
 public:
  FileSource(const std::string& path, const struct stat& status)
      : Source(path, file_identity(path, status), static_cast<std::uint64_t>(status.st_size)) {}

  bool unchanged() const override {
    struct stat status{};
    return lstat(name().c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
           file_identity(name(), status) == identity();
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
      if (fstat(file->descriptor(), &status) != 0 || file_identity(name(), status) != identity()) {
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
