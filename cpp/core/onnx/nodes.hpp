#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ortmulti {

class Source;

/// A node of a model's main graph.
struct Node {
  std::string name;
  std::string type;  ///< "MatMul", or with its domain "com.microsoft:MatMulNBits".
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  std::map<std::string, std::vector<std::int64_t>> integers;  ///< Attributes of one integer or of several.
};

/// What the nodes of a model's main graph compute with.
struct Nodes {
  std::vector<Node> nodes;          ///< In the model's order.
  std::uint64_t opset = 0;          ///< The release of ONNX's own operators.
  std::vector<std::string> inputs;  ///< Of the graph, without initializers.
  std::vector<std::string> outputs;
  std::map<std::string, std::size_t> ranks;                    ///< Numbers of dimensions that the model says.
  std::map<std::string, std::vector<std::int64_t>> constants;  ///< Constant tensors of up to 64 integers.
};

/// Reads them without weights. Throws as index_model().
Nodes read_nodes(const Source& model);

}  // namespace ortmulti
