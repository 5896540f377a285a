#pragma once

#include <onnxruntime_cxx_api.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/cuda_memory.hpp"
#include "core/pool/gpu_session.hpp"
#include "core/pool/request_tensors.hpp"

namespace ortmulti {

/// One shape's CUDA graph: the memory whose addresses it has, bound.
struct CapturedGraph {
  std::string key;
  int number = 0;  // that ONNX Runtime knows it by
  std::unique_ptr<const CudaMemory> memory;
  std::vector<void*> inputs;        // in the order of the key
  std::vector<Ort::Value> outputs;  // in the order of the session's
  Ort::IoBinding binding{nullptr};
  Ort::RunOptions options{nullptr};
};

/// The CUDA graphs of one thread: a bounded number, of which the least recently used goes. What is asked for the first
/// time is not captured yet. Its functions are called by that thread.
class CapturedGraphs {
 public:
  CapturedGraphs(std::shared_ptr<GpuSession> session, std::size_t most);

  /// The graph of these inputs, which becomes the most recently used; null where it was not made.
  CapturedGraph* find(const std::string& key);

  /// What outputs a run of these shapes had, from which its graph can be made.
  void learn(const std::string& key, const std::vector<Ort::Value>& outputs);
  bool known(const std::string& key) const { return learned_.count(key) != 0; }

  /// Lets the least recently used go where there is no room for another one; false where ONNX Runtime cannot release a
  /// graph alone, before 1.27. Not with a lock of the session.
  bool make_room();
  /// What a graph of learned shapes needs, nothing captured yet. Throws Error.
  CapturedGraph& make(const std::string& key, const std::vector<RequestTensor>& inputs, const Session::Lock& open);
  /// This one was not captured, or, refused, cannot be: then it is not made again.
  void forget(const std::string& key, bool refused);

  /// After the thread has changed: all of them are gone.
  void clear();

 private:
  struct Output {
    ONNXTensorElementDataType type;
    std::vector<std::int64_t> shape;
  };
  static constexpr std::size_t most_learned = 1024;  // shapes; more of them are not worth graphs

  std::shared_ptr<GpuSession> session_;
  std::size_t most_;
  int next_number_ = 1;
  std::list<CapturedGraph> graphs_;  // the most recently used first
  std::map<std::string, std::vector<Output>> learned_;
  std::set<std::string> refused_;
};

}  // namespace ortmulti
