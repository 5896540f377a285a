#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/non_copyable.hpp"

namespace ortmulti {

class InputFile;

/// How a source is read best. 0: as a file of this machine.
struct Reading {
  int at_once = 0;          ///< Ranges that are read at the same time.
  std::uint64_t bytes = 0;  ///< Of a range.
};

/// Where a model's bytes come from: a file, memory, or what a class of the caller's reads. Any thread may use it.
class Source : NonCopyable {
 public:
  Source(std::string name, std::string identity, std::uint64_t size);
  virtual ~Source() = default;

  /// For messages. Of a file: its path, absolute and without symbolic links.
  const std::string& name() const noexcept { return name_; }
  /// A text that other bytes do not have: for the keys of caches, and to see whether a source is the same.
  const std::string& identity() const noexcept { return identity_; }
  std::uint64_t size() const noexcept { return size_; }

  /// Whether these bytes are within its size.
  bool has(std::uint64_t size, std::uint64_t offset) const noexcept {
    return offset <= size_ && size <= size_ - offset;
  }

  /// Reads exactly these bytes. Throws Error with ErrorKind::weights, which names the source: for bytes beyond its end,
  /// for others than the identity's, and for what cannot be read.
  void read(void* target, std::uint64_t size, std::uint64_t offset) const;

  /// Whether the identity's bytes are still there. A file's rights, owner and links may be others.
  virtual bool unchanged() const { return true; }
  /// Throws Error with ErrorKind::weights unless they are.
  void check() const;

  virtual Reading reading() const noexcept { return {}; }
  /// Ends the reads that are under way, by errors. Later ones are not ended. Not to be called under a lock.
  virtual void interrupt() const noexcept {}

  /// All bytes in memory, without a copy, as long as this is held; null where they can only be read.
  virtual std::shared_ptr<const unsigned char> map() const { return nullptr; }

  /// The open file of a source that is one; null for others. Otherwise each read() opens it, unless somebody holds
  /// this.
  virtual std::shared_ptr<const InputFile> open() const { return nullptr; }

 private:
  /// For a range that is not empty and within the size.
  virtual void read_range(void* target, std::uint64_t size, std::uint64_t offset) const = 0;

  std::string name_;
  std::string identity_;
  std::uint64_t size_;
};

/// A regular file as it is now. Follows symbolic links; opens no device and waits for no FIFO. Throws Error with
/// no_such_file unless the path leads to a regular file.
std::shared_ptr<const Source> file_source(const std::string& path);

/// Bytes that do not change as long as they are held. Without `identity` they are identified by their address.
std::shared_ptr<const Source> memory_source(const std::string& name, std::shared_ptr<const unsigned char> bytes,
                                            std::uint64_t size, const std::string& identity = "");

}  // namespace ortmulti
