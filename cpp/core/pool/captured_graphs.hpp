#pragma once

#include <onnxruntime_cxx_api.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda/graph.hpp"
#include "core/cuda/memory.hpp"
#include "core/pool/gpu_session.hpp"

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

/// The CUDA graphs of one runner: a bounded number, of which the least recently used goes. What is asked for the first
/// time is not captured yet. Not for several threads at once; all but the first functions need the device's context.
class CapturedGraphs {
 public:
  CapturedGraphs(std::shared_ptr<GpuSession> session, std::size_t most) : session_(std::move(session)), most_(most) {}

  /// The graph of these inputs, which becomes the most recently used; null where there is none.
  CapturedGraph* find(const std::string& key);
  /// Whether outputs of these shapes were learned, and none was refused.
  bool can_be_made(const std::string& key) const { return learned_.count(key) != 0; }
  /// What outputs a run of these shapes had.
  void learn(const std::string& key, const std::vector<Ort::Value>& outputs);
  /// No graph can be made of these.
  void refuse(const std::string& key);

  /// What a graph of learned shapes needs, nothing captured yet.
  CapturedGraph make(const std::string& key, const std::vector<RequestTensor>& inputs, const Session::Lock& open);
  /// Keeps it, and lets the least recently used one go where there are too many.
  CapturedGraph* keep(CapturedGraph graph);

 private:
  struct Output {
    ONNXTensorElementDataType type;
    std::vector<std::int64_t> shape;
  };
  static constexpr std::size_t most_learned = 1024;  // shapes; more of them are not worth graphs

  std::shared_ptr<GpuSession> session_;
  std::size_t most_;
  std::list<CapturedGraph> graphs_;  // the most recently used first
  std::map<std::string, std::vector<Output>> learned_;
  std::set<std::string> refused_;
};

}  // namespace ortmulti
