#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/cuda/copies.hpp"
#include "core/cuda/graph.hpp"
#include "core/cuda/memory.hpp"
#include "core/pool/gpu_session.hpp"
#include "core/pool/graph_shapes.hpp"
#include "core/pool/graphs_beside.hpp"
#include "core/pool/launch_times.hpp"
#include "core/pool/runner.hpp"

namespace ortmulti {

/// Runs requests with a session on a GPU. Inputs and outputs of the host are copied on the runner's own stream, through
/// pinned memory, while the session's other runners run. With CUDA graphs the second run of a shape is captured, and
/// from then on launched on that stream, between the copies. It keeps a bounded number of graphs, those used last.
class GpuRunner : public SessionRunner, NonCopyable {
 public:
  /// `max_graphs`: how many shapes it keeps graphs of. What it needs of the GPU and of pinned memory is there from
  /// prepare() or from its first run on.
  /// `beside`: has the graphs of a session without graphs of its own; null: there are none.
  GpuRunner(std::shared_ptr<GpuSession> session, std::size_t max_graphs,
            std::shared_ptr<GraphsBeside> beside = nullptr);
  ~GpuRunner() override;

  void prepare();
  /// From several threads: one by one.
  void run(Request& request) override;
  GraphCounts graphs() const override { return beside_ ? beside_->counts() : GraphCounts(); }
  /// What inputs and outputs of the graphs that it captured take.
  std::uint64_t graph_bytes() const;
  bool drop_graphs() override { return beside_ && beside_->drop_all(); }
  void free_buffers() override;
  /// While a quarter of the GPU's memory is free, more of them may run.
  std::string why_no_more() noexcept override;
  /// Captures the graph of inputs of one shape: those of both requests. Throws Error unless the session repeats its
  /// bits for the first one, and the graph then has those of ordinary runs for either, from poisoned outputs. A value
  /// that was captured instead of being computed would be another's. Returns the first one's outputs.
  std::vector<Ort::Value> prove(Request& one, Request& other);

 private:
  using Tensors = std::vector<RequestTensor>;
  /// One shape's CUDA graph: the memory whose addresses it has, bound.
  struct CapturedGraph {
    std::string key;
    std::unique_ptr<const CudaMemory> memory;
    std::vector<void*> inputs;        // in the order of the key
    std::vector<Ort::Value> outputs;  // in the order of the session's
    Ort::IoBinding binding{nullptr};
    std::unique_ptr<const CudaGraph> graph;
  };

  void run_ordinarily(Request& request, const Tensors& inputs, const std::string& key);
  /// By a graph of `beside_`, if there is one. Has one made where the shapes come again.
  void run_beside(Request& request, const Tensors& inputs, const std::string& key);
  /// False where there is no graph, or it failed: the request is to be run ordinarily.
  bool run_by_graph(Request& request, const std::string& key);
  static GraphsBeside::Sample sample_of(const Tensors& inputs, const Request& answered);
  /// The graph of these inputs, which may be captured now; null where they are to be run ordinarily.
  CapturedGraph* graph_for(Request& request, const Tensors& inputs, const std::string& key);
  /// In the session's own thread, three times where something invalidates the captures. Throws Error.
  CapturedGraph* capture(Request& request, const Tensors& inputs, const std::string& key,
                         const GraphShapes::Outputs& outputs);
  CapturedGraph* capture_once(Request& request, const Tensors& inputs, const std::string& key,
                              const GraphShapes::Outputs& outputs);
  /// What a graph needs, nothing captured yet.
  CapturedGraph prepare_graph(const std::string& key, const Tensors& inputs, const GraphShapes::Outputs& outputs,
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
  std::size_t max_graphs_;
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
  std::list<CapturedGraph> graphs_;  // the most recently used first
};

}  // namespace ortmulti
