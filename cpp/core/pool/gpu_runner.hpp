#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/cuda/copies.hpp"
#include "core/cuda/graph.hpp"
#include "core/cuda/memory.hpp"
#include "core/policy/launch_times.hpp"
#include "core/pool/gpu_session.hpp"
#include "core/pool/runner.hpp"
#include "core/pool/shape_graphs.hpp"

namespace ortmulti {

/// Runs requests with a session on a GPU. Inputs and outputs of the host are copied on the runner's own stream, through
/// pinned memory, while the session's other runners run. A runner of a session that was created to capture has one CUDA
/// graph, from prove() on, and launches it on that stream, between the copies.
class GpuRunner : public SessionRunner, NonCopyable {
 public:
  /// It takes memory of the GPU and pinned memory in prepare(), or in its first run. `graphs`: those of an ordinary
  /// session; null: none.
  explicit GpuRunner(std::shared_ptr<GpuSession> session, std::shared_ptr<ShapeGraphs> graphs = nullptr);
  ~GpuRunner() override;

  void prepare();
  /// Several threads may call it; runs go one by one.
  void run(Request& request) override;
  GraphCounts graphs() const override { return shape_graphs_ ? shape_graphs_->counts() : GraphCounts(); }
  /// Bytes of the inputs and outputs of its graph.
  std::uint64_t graph_bytes() const;
  bool makes_graphs() const noexcept override { return shape_graphs_ && shape_graphs_->making(); }
  bool drop_graphs() override { return shape_graphs_ && shape_graphs_->drop_all(); }
  void free_buffers() override;
  /// More runners may run while a quarter of the GPU's memory is free.
  std::optional<std::string> why_no_more() noexcept override { return why_memory_is_short(); }
  /// Captures a graph for the shape of both requests, which ask for all outputs. Returns the outputs of `one`. Throws
  /// Error unless ordinary runs of `one` repeat their bits, and the graph gives the bits of ordinary runs for both
  /// requests, into poisoned outputs. A captured value that should be computed would show as another request's.
  std::vector<Ort::Value> prove(Request& one, Request& other);

 private:
  /// Empty: a quarter of the GPU's memory is free.
  std::string why_memory_is_short() noexcept;
  using Tensors = std::vector<RequestTensor>;
  /// One shape's CUDA graph, and the memory that its addresses lie in.
  struct CapturedGraph {
    std::unique_ptr<const CudaMemory> memory;
    std::vector<void*> inputs;        // by their names' order
    std::vector<Ort::Value> outputs;  // in the order of the session's
    Ort::IoBinding binding{nullptr};
    std::unique_ptr<const CudaGraph> graph;
  };

  void run_ordinarily(Request& request, const Tensors& inputs);
  /// Runs by a graph of `shape_graphs_`, if there is one; else ordinarily. Has a graph made if the shapes come again.
  void run_with_graphs(Request& request, const Tensors& inputs, const std::string& key);
  /// False if there is no graph, or it failed: then run the request ordinarily.
  bool run_by_graph(Request& request, const std::string& key);
  static ShapeGraphs::Sample sample_of(const Tensors& inputs, const Request& answered);
  /// Captures in the session's own thread, up to three times if captures are invalidated. Throws Error. `outputs`:
  /// those of an ordinary run.
  CapturedGraph& capture(const Tensors& inputs, const std::vector<Ort::Value>& outputs);
  void capture_once(const Tensors& inputs, const std::vector<Ort::Value>& outputs);
  /// What a graph needs, nothing captured yet.
  CapturedGraph prepare_graph(const Tensors& inputs, const std::vector<Ort::Value>& outputs,
                              const Session::Lock& open) const;
  void run_graph(Request& request, const Tensors& inputs, CapturedGraph& graph);

  /// Binds the session's inputs: copies of those that the GPU reads and that lie elsewhere.
  void bind_inputs(const Tensors& inputs, const Session::Lock& open);
  /// Frees staged inputs if free_buffers() asked for that. Only while nothing runs.
  void free_staged() noexcept;
  void copy_in(void* target, const RequestTensor& input);
  Ort::Value to_host(const Ort::Value& value);
  Ort::Value copy_to(const CudaMemory& memory, const Ort::Value& value);
  /// Fills in the request's outputs from those of a run. `copy_on_device`: outputs on the device are copied, too.
  void answer(Request& request, std::vector<Ort::Value> outputs, bool copy_on_device);

  std::shared_ptr<GpuSession> shared_;
  std::shared_ptr<ShapeGraphs> shape_graphs_;
  std::mutex running_;
  std::atomic<bool> in_run_{false};
  std::atomic<bool> frees_staged_{false};
  WakeTime wake_time_;
  std::unique_ptr<StagedCopies> copies_;
  std::unique_ptr<const CudaMemory> staged_;  // where inputs are copied to
  std::size_t staged_bytes_ = 0;
  Ort::IoBinding binding_{nullptr};
  Ort::RunOptions ordinary_{nullptr};  // of runs beside the captured ones
  Ort::RunOptions capturing_{nullptr};
  std::optional<CapturedGraph> graph_;
};

}  // namespace ortmulti
