#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ortmulti {

/// A value that nodes of a tiny model read: an input of the model.
struct TinyValue {
  std::string_view name;
  std::vector<std::int64_t> shape;
};

/// A node of a tiny model. It has no attributes, and its only output is an output of the model.
struct TinyNode {
  std::string_view operator_name;  ///< "MatMul", or with its domain "com.microsoft:FastGelu".
  std::vector<const TinyValue*> inputs;
};

/// A serialized model of nodes that do not depend on each other. All values have the one element type, ONNX's
/// TensorProto.DataType. The outputs are "y0", "y1" and so on.
std::string tiny_model(int element_type, const std::vector<TinyNode>& nodes);

}  // namespace ortmulti
