#include "core/ort/operators.hpp"

#include <algorithm>

namespace ortmulti {

bool reads_weights_when_created(const std::set<std::string>& operators) {
  // Operators whose CUDA kernels neither pack a weight nor read one when they are constructed (onnxruntime's
  // core/providers/cuda and contrib_ops/cuda, 1.21 to 1.31). What kernels read on the host (axes, shapes, pads) is
  // planned on the CPU and never shared.
  // clang-format off
  static const std::set<std::string> known_not_to = {
    "Abs", "Add", "And", "ArgMax", "AveragePool", "BatchNormalization", "Cast", "Ceil", "Concat", "Constant",
    "ConstantOfShape", "Cos", "CumSum", "Div", "Dropout", "Equal", "Erf", "Exp", "Expand", "Flatten", "Floor",
    "Gather", "GatherElements", "GatherND", "Gelu", "Gemm", "GlobalAveragePool", "Greater", "Identity",
    "LayerNormalization", "LeakyRelu", "Less", "Log", "MatMul", "Max", "MaxPool", "MemcpyFromHost", "MemcpyToHost",
    "Min", "Mul", "Neg", "Not", "Or", "Pow", "Range", "Reciprocal", "ReduceMean", "ReduceSum", "Relu", "Reshape",
    "Shape", "Sigmoid", "SimplifiedLayerNormalization", "Sin", "Slice", "Softmax", "Split", "Sqrt", "Squeeze", "Sub",
    "Tanh", "Transpose", "Trilu", "Unsqueeze", "Where", "com.microsoft:BiasGelu", "com.microsoft:BiasSoftmax",
    "com.microsoft:FastGelu", "com.microsoft:FusedMatMul", "com.microsoft:Gelu", "com.microsoft:QuickGelu",
    "com.microsoft:RotaryEmbedding", "com.microsoft:SimplifiedLayerNormalization",
    "com.microsoft:SkipLayerNormalization", "com.microsoft:SkipSimplifiedLayerNormalization",
  };
  // clang-format on
  return operators.empty() || !std::ranges::includes(known_not_to, operators);
}

std::string find_stateful_operator(const std::set<std::string>& operators) {
  static const std::set<std::string> random = {
      "Bernoulli",        "Dropout",       "Multinomial",       "RandomNormal",
      "RandomNormalLike", "RandomUniform", "RandomUniformLike", "com.microsoft:Sampling"};
  static const std::set<std::string> domains = {"ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc",
                                                "com.ms.internal.nhwc"};
  const auto found = std::ranges::find_if(operators, [](const std::string& name) {
    const std::size_t colon = name.rfind(':');
    return random.contains(name) || (colon != std::string::npos && !domains.contains(name.substr(0, colon)));
  });
  return found == operators.end() ? "" : *found;
}

}  // namespace ortmulti
