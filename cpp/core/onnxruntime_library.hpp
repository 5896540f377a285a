#pragma once

#include <onnxruntime_cxx_api.h>

#include <memory>
#include <string>
#include <vector>

#include "core/log_queue.hpp"

namespace ortmulti {

/// Where ONNX Runtime's log goes. A forked child has a new, empty one.
LogQueue& onnxruntime_log();

/// The one ONNX Runtime of this process: the opened libonnxruntime, its API and its environment. It is never closed:
/// sessions, values and ONNX Runtime's own threads may need it up to the end of the process.
class OnnxRuntime {
 public:
  /// The newest API that may be called without asking for the release first: 1.21's.
  static constexpr int api_version = 21;

  /// Opens the library at `path`. Once it is open, the same path returns it and another one is an error.
  static OnnxRuntime& open(const std::string& path);

  /// The opened library; an error before open().
  static OnnxRuntime& get();
  static bool is_open() noexcept;

  const std::string& path() const noexcept { return path_; }
  const std::string& version() const noexcept { return version_; }  ///< "1.31.1"
  std::vector<std::string> available_providers() const;

  const Ort::Env& env() const noexcept { return *env_; }

  OnnxRuntime(const OnnxRuntime&) = delete;
  OnnxRuntime& operator=(const OnnxRuntime&) = delete;

 private:
  explicit OnnxRuntime(const std::string& path);
  ~OnnxRuntime() = default;

  std::string path_;
  std::string version_;
  std::unique_ptr<Ort::Env> env_;
};

}  // namespace ortmulti
