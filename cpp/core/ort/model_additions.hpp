#pragma once

#include <onnxruntime_cxx_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace ortmulti {

/// A shared library of custom operators, loaded as long as somebody holds this.
class CustomOpLibrary {
 public:
  /// Loads the library, and has it register its operators once to see that it can. Throws Error.
  static std::shared_ptr<const CustomOpLibrary> open(const std::string& path);

  const std::string& path() const noexcept { return path_; }
  // Of its file when it was opened; zeros where the path is a name that the system's loader looks for.
  std::uint64_t size() const noexcept { return size_; }
  std::uint64_t inode() const noexcept { return inode_; }
  std::int64_t mtime_ns() const noexcept { return mtime_ns_; }  ///< Nanoseconds since 1970.

  /// Registers the operators with options of a session. The first call also makes their domains known to ONNX Runtime,
  /// with no other library's beside it: it looks a domain up and adds it in two steps, so that of two sessions that
  /// are first to use one at the same time, one fails (up to 1.31 at least). Throws Ort::Exception and Error.
  void add_to(Ort::SessionOptions& options) const;

 private:
  explicit CustomOpLibrary(const std::string& path);

  std::string path_;
  std::uint64_t size_ = 0;
  std::uint64_t inode_ = 0;
  std::int64_t mtime_ns_ = 0;
  mutable bool domains_known_ = false;  // under the lock of add_to()
  Ort::SessionOptions holder_;          // by ONNX Runtime's rules the library is loaded as long as this is there
};

/// What options add to a model, in memory that ONNX Runtime may use in place: to be held until its session is freed.
struct ModelAdditions {
  using NamedValue = std::pair<std::string, std::shared_ptr<const Ort::Value>>;
  struct FileInMemory {
    std::string name;  ///< As the model's external data names it.
    const void* data = nullptr;
    std::size_t size = 0;
    std::shared_ptr<const void> owner;
  };

  /// In the place of initializers of these names, as far as ONNX Runtime's graph still has them. Tensors whose memory
  /// is not ONNX Runtime's own.
  std::vector<NamedValue> initializers;
  std::vector<NamedValue> external_initializers;  ///< In the place of those with external data, before optimizations.
  std::vector<FileInMemory> files;                ///< Read in the place of files of external data.
  std::vector<std::shared_ptr<const CustomOpLibrary>> custom_op_libraries;

  void add_to(Ort::SessionOptions& options) const;
};

}  // namespace ortmulti
