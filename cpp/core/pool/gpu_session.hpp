#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "core/cuda_memory.hpp"
#include "core/session.hpp"

namespace ortmulti {

/// A session on a GPU as several requests use it, each in a runner of its own.
class GpuSession {
 public:
  struct Options {
    bool graphs = false;  ///< Whether it was created to capture CUDA graphs.
    bool one_run_at_a_time = false;
  };

  /// Throws Error with ErrorKind::invalid_argument for a session whose inputs or outputs a CUDA graph cannot hold.
  GpuSession(std::shared_ptr<Session> session, const Options& options);

  const std::shared_ptr<Session>& session() const noexcept { return session_; }
  const Options& options() const noexcept { return options_; }

  /// Whether the GPU reads an input of so many bytes, or writes an output, so that it is best there already.
  bool reads_on_device(std::string_view input, std::size_t bytes) const;
  bool writes_on_device(std::string_view output) const;

  /// Held while it runs, where only one may. Runs that overlap would use each other's memory where a graph is captured,
  /// which has the addresses of what ONNX Runtime's arena had free at the time.
  std::unique_lock<std::mutex> take_turn();

  /// Memory of the device that does not belong to ONNX Runtime's arena, which is used again when it is given back.
  std::shared_ptr<const CudaMemory> allocate(std::size_t bytes);

 private:
  class Blocks;
  using Placement = std::map<std::string, bool, std::less<>>;

  std::shared_ptr<Session> session_;
  Options options_;
  bool placement_known_ = false;
  Placement inputs_;  // whether on the device
  Placement outputs_;
  std::mutex turn_;
  std::shared_ptr<Blocks> blocks_;
};

}  // namespace ortmulti
