#include "core/ort/empty_sequence.hpp"

#include <cstdint>

#include "core/onnx/element_types.hpp"
#include "core/onnx/wire.hpp"
#include "core/ort/checked.hpp"
#include "core/ort/library.hpp"

namespace ortmulti {

// "empty" = SequenceEmpty(), whose element types have the same numbers in ONNX's files and in ONNX Runtime.
std::string empty_sequence_model(ONNXTensorElementDataType element_type) {
  constexpr std::uint64_t ir_version = 8;
  constexpr std::uint64_t opset = 11;
  constexpr std::uint64_t integer_attribute = 2;
  const auto element = static_cast<std::uint64_t>(element_type);
  const std::string dtype = wire_field(1, "dtype") + wire_field(3, element) + wire_field(20, integer_attribute);
  const std::string node = wire_field(2, "empty") + wire_field(4, "SequenceEmpty") + wire_field(5, dtype);
  const std::string tensor = wire_field(1, wire_field(1, element));
  const std::string output = wire_field(1, "empty") + wire_field(2, wire_field(4, wire_field(1, tensor)));
  const std::string graph = wire_field(1, node) + wire_field(2, "graph") + wire_field(12, output);
  return wire_field(1, ir_version) + wire_field(7, graph) + wire_field(8, wire_field(2, opset));
}

Ort::SessionOptions small_session_options() {
  Ort::SessionOptions options;
  options.SetIntraOpNumThreads(1);
  options.SetInterOpNumThreads(1);
  options.DisableCpuMemArena();
  return options;
}

Ort::Value make_empty_sequence(OnnxRuntime& runtime, ONNXTensorElementDataType element_type) {
  const std::string context =
      std::string("making an empty sequence of tensor(") + element_type_name(element_type) + ")";
  return checked(context, [&] {
    const std::string model = empty_sequence_model(element_type);
    Ort::Session session(runtime.env(), model.data(), model.size(), small_session_options());
    const char* const name = "empty";
    Ort::Value value{nullptr};
    session.Run(Ort::RunOptions{nullptr}, nullptr, nullptr, 0, &name, &value, 1);
    return value;
  });
}

}  // namespace ortmulti
