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
#include "core/pool/gpu_session.hpp"
#include "core/pool/graphs_beside.hpp"
#include "core/pool/launch_times.hpp"
#include "core/pool/runner.hpp"

namespace ortmulti {

/// Runs requests with a session on a GPU. Inputs and outputs of the host are copied on the runner's own stream, through
/// pinned memory, while the session's other runners run. A runner of a session that was created to capture has one CUDA
/// graph, from prove() on, and launches it on that stream, between the copies.
class GpuRunner : public SessionRunner, NonCopyable {
 public:
  /// What it needs of the GPU and of pinned memory is there from prepare() or from its first run on.
  /// `beside`: has the graphs of an ordinary session; null: there are none.
  explicit GpuRunner(std::shared_ptr<GpuSession> session, std::shared_ptr<GraphsBeside> beside = nullptr);
  ~GpuRunner() override;

  void prepare();
  /// From several threads: one by one.
  void run(Request& request) override;
  GraphCounts graphs() const override { return beside_ ? beside_->counts() : GraphCounts(); }
  /// What inputs and outputs of its graph take.
  std::uint64_t graph_bytes() const;
  bool drop_graphs() override { return beside_ && beside_->drop_all(); }
  void free_buffers() override;
  /// While a quarter of the GPU's memory is free, more of them may run.
  std::string why_no_more() noexcept override;
  /// Captures the graph of inputs of one shape: those of both requests, which want all outputs. Throws Error unless the
  /// session repeats its bits for the first one, and the graph then has those of ordinary runs for either, from
  /// poisoned outputs. A value that was captured instead of being computed would be another's. Returns the first one's
  /// outputs.
  std::vector<Ort::Value> prove(Request& one, Request& other);

 private:
  using Tensors = std::vector<RequestTensor>;
  /// One shape's CUDA graph: the memory whose addresses it has, bound.
  struct CapturedGraph {
    std::unique_ptr<const CudaMemory> memory;
    std::vector<void*> inputs;        // by their names' order
    std::vector<Ort::Value> outputs;  // in the order of the session's
    Ort::IoBinding binding{nullptr};
    std::unique_ptr<const CudaGraph> graph;
  };

  void run_ordinarily(Request& request, const Tensors& inputs);
  /// By a graph of `beside_`, if there is one. Has one made where the shapes come again.
  void run_beside(Request& request, const Tensors& inputs, const std::string& key);
  /// False where there is no graph, or it failed: the request is to be run ordinarily.
  bool run_by_graph(Request& request, const std::string& key);
  static GraphsBeside::Sample sample_of(const Tensors& inputs, const Request& answered);
  /// In the session's own thread, three times where something invalidates the captures. Throws Error. `outputs`: those
  /// of an ordinary run.
  CapturedGraph& capture(const Tensors& inputs, const std::vector<Ort::Value>& outputs);
  void capture_once(const Tensors& inputs, const std::vector<Ort::Value>& outputs);
  /// What a graph needs, nothing captured yet.
  CapturedGraph prepare_graph(const Tensors& inputs, const std::vector<Ort::Value>& outputs,
                              const Session::Lock& open) const;
  void run_graph(Request& request, const Tensors& inputs, CapturedGraph& graph);

  /// Binds the session's inputs: copies of those that the GPU reads and that lie elsewhere.
  void bind_inputs(const Tensors& inputs);
  /// Where that was asked for. While nobody runs.
  void free_staged() noexcept;
  void copy_in(void* target, const RequestTensor& input);
  Ort::Value to_host(const Ort::Value& value);
  Ort::Value copy_to(const CudaMemory& memory, const Ort::Value& value);
  /// The request's outputs, from those of a run; `copy_on_device`: they do not stay where they are.
  void answer(Request& request, std::vector<Ort::Value> outputs, bool copy_on_device);

  std::shared_ptr<GpuSession> shared_;
  std::shared_ptr<GraphsBeside> beside_;
  std::mutex running_;
  std::atomic<bool> in_run_{false};
  std::atomic<bool> frees_staged_{false};
  Sleeper sleeper_;
  std::unique_ptr<StagedCopies> copies_;
  std::unique_ptr<const CudaMemory> staged_;  // where inputs are copied to
  std::size_t staged_bytes_ = 0;
  Ort::IoBinding binding_{nullptr};
  Ort::RunOptions ordinary_{nullptr};  // of runs beside the captured ones
  Ort::RunOptions capturing_{nullptr};
  std::optional<CapturedGraph> graph_;
};

}  // namespace ortmulti
