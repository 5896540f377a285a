#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/cuda_memory.hpp"
#include "core/own_thread.hpp"
#include "core/pool/captured_graphs.hpp"
#include "core/pool/gpu_session.hpp"
#include "core/pool/request_tensors.hpp"
#include "core/pool/session_runner.hpp"
#include "core/staged_copies.hpp"

namespace ortmulti {

/// Runs requests with a session on a GPU. Inputs and outputs of the host are copied on a stream of the runner's own,
/// through pinned memory, while other runners of the same session run. With CUDA graphs it has a thread of its own,
/// since ONNX Runtime keeps what a thread captured for that thread.
class GpuRunner : public SessionRunner {
 public:
  /// `max_graphs`: how many shapes it keeps graphs of.
  GpuRunner(std::shared_ptr<GpuSession> session, std::size_t max_graphs);
  ~GpuRunner() override;
  GpuRunner(const GpuRunner&) = delete;
  GpuRunner& operator=(const GpuRunner&) = delete;

  /// From several threads: one by one.
  void run(Request& request) override;

 private:
  using Tensors = std::vector<RequestTensor>;

  void run_there(Request& request, bool may_capture);
  void run_ordinarily(Request& request, const Tensors& inputs, const std::string& key);
  /// Whether there is a graph of these inputs, which was captured or is captured now, and has answered the request.
  bool run_as_graph(Request& request, const Tensors& inputs, const std::string& key, bool may_capture);

  /// Binds the session's inputs: copies of those that the GPU reads and that lie elsewhere.
  void bind_inputs(const Tensors& inputs);
  void copy_in(void* target, const RequestTensor& input);
  Ort::Value to_host(const Ort::Value& value);
  Ort::Value copy_to(const CudaMemory& memory, const Ort::Value& value);
  bool lies_in_staged(const void* data) const;
  std::unique_lock<std::mutex> take_turn(Request& request);
  /// The request's outputs, from those of a run; `copy_on_device`: they do not stay where they are.
  void answer(Request& request, std::vector<Ort::Value> outputs, bool copy_on_device);

  std::shared_ptr<GpuSession> shared_;
  std::mutex running_;
  std::unique_ptr<StagedCopies> copies_;
  std::unique_ptr<const CudaMemory> staged_;  // where inputs are copied to
  std::size_t staged_bytes_ = 0;
  Ort::IoBinding binding_{nullptr};
  Ort::RunOptions ordinary_{nullptr};  // of runs beside the captured ones
  std::optional<CapturedGraphs> graphs_;
  bool capture_failed_ = false;  // in the thread, which is then not used any more
  std::unique_ptr<OwnThread> thread_;
};

}  // namespace ortmulti
