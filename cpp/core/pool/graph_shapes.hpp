#pragma once

#include <onnxruntime_cxx_api.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/base/recently_used.hpp"

namespace ortmulti {

/// A session's input shapes that have no CUDA graph yet: what outputs they had, or that no graph can be made of them.
/// The least recently used are forgotten. After some refusals in a row nothing is captured any more. For several
/// threads.
class GraphShapes {
 public:
  static constexpr std::size_t most = 1024;
  static constexpr int most_refusals = 8;  ///< In a row, each of other shapes.

  struct Output {
    ONNXTensorElementDataType type;
    std::vector<std::int64_t> shape;
  };
  using Outputs = std::vector<Output>;

  /// The outputs of inputs of these shapes, if a graph is to be made of them.
  std::optional<Outputs> find(const std::string& key);
  /// What outputs a run of these shapes had.
  void learn(const std::string& key, const std::vector<Ort::Value>& outputs);
  void captured();
  /// No graph can be made of these. Returns whether it was the last refusal, after which nothing is captured.
  bool refuse(const std::string& key);

 private:
  struct Entry {
    Outputs outputs;
    bool refused = false;
  };

  bool given_up() const noexcept { return refusals_ == most_refusals; }

  std::mutex mutex_;
  RecentlyUsed<Entry> entries_{most};
  int refusals_ = 0;  // since the last graph that was made
};

}  // namespace ortmulti
