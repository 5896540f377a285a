#pragma once

#include <onnxruntime_cxx_api.h>

#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda/graph.hpp"
#include "core/cuda/memory.hpp"
#include "core/pool/gpu_session.hpp"
#include "core/pool/graph_shapes.hpp"

namespace ortmulti {

/// One shape's CUDA graph: the memory whose addresses it has, bound.
struct CapturedGraph {
  std::string key;
  std::unique_ptr<const CudaMemory> memory;
  std::vector<void*> inputs;        // in the order of the key
  std::vector<Ort::Value> outputs;  // in the order of the session's
  Ort::IoBinding binding{nullptr};
  std::unique_ptr<const CudaGraph> graph;
};

/// The CUDA graphs of one runner: a bounded number, of which the least recently used goes. Not for several threads at
/// once; all but find() need the device's context.
class CapturedGraphs {
 public:
  CapturedGraphs(std::shared_ptr<GpuSession> session, std::size_t most) : session_(std::move(session)), most_(most) {}

  /// The graph of these inputs, which becomes the most recently used; null where there is none.
  CapturedGraph* find(const std::string& key);
  /// What a graph with these outputs needs, nothing captured yet.
  CapturedGraph make(const std::string& key, const std::vector<RequestTensor>& inputs,
                     const GraphShapes::Outputs& outputs, const Session::Lock& open);
  /// Keeps it, and lets the least recently used one go where there are too many.
  CapturedGraph* keep(CapturedGraph graph);

 private:
  std::shared_ptr<GpuSession> session_;
  std::size_t most_;
  std::list<CapturedGraph> graphs_;  // the most recently used first
};

}  // namespace ortmulti
