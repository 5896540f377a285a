#pragma once

#include <onnxruntime_cxx_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/cuda/graph.hpp"
#include "core/cuda/memory.hpp"
#include "core/ort/session.hpp"
#include "core/policy/launch_times.hpp"
#include "core/pool/captured_session.hpp"
#include "core/pool/gpu_runner.hpp"

namespace ortmulti {

/// Runs requests of one shape with a CUDA graph, which it launches on the stream of its copies, between these. It has
/// one from prove() on, which is called before run().
class CapturedRunner : public GpuRunner {
 public:
  explicit CapturedRunner(const std::shared_ptr<CapturedSession>& session);
  ~CapturedRunner() override;

  /// Captures a graph for the shape of both requests, which ask for all outputs. Returns the outputs of `one`. Throws
  /// Error unless ordinary runs of `one` repeat their bits, and the graph gives the bits of ordinary runs for both
  /// requests, into poisoned outputs. A captured value that should be computed would show as another request's.
  std::vector<Ort::Value> prove(Request& one, Request& other);
  /// Bytes of the inputs and outputs of its graph.
  std::uint64_t graph_bytes() const { return graph_ ? graph_->memory->bytes() : 0; }

 private:
  /// A CUDA graph, and the memory that its addresses lie in.
  struct CapturedGraph {
    std::unique_ptr<const CudaMemory> memory;
    std::vector<void*> inputs;        // by their names' order
    std::vector<Ort::Value> outputs;  // in the order of the session's
    Ort::IoBinding binding{nullptr};
    std::unique_ptr<const CudaGraph> graph;
  };

  void run_tensors(Request& request, Tensors& inputs) override;
  /// Captures in the session's own thread, up to three times if captures are invalidated. Throws Error. `outputs`:
  /// those of an ordinary run.
  void capture(const Tensors& inputs, const std::vector<Ort::Value>& outputs);
  void capture_once(const Tensors& inputs, const std::vector<Ort::Value>& outputs, const Session::Lock& open);
  /// What a graph needs, nothing captured yet.
  CapturedGraph prepare_graph(const Tensors& inputs, const std::vector<Ort::Value>& outputs,
                              const Session::Lock& open) const;
  void run_graph(Request& request, const Tensors& inputs);

  CapturedSession& captured_;  // as the base has it
  WakeTime wake_time_;
  Ort::RunOptions ordinary_;  // of runs beside the captured ones
  Ort::RunOptions capturing_;
  std::unique_ptr<CapturedGraph> graph_;  // from prove() on
};

}  // namespace ortmulti
