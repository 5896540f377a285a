#include "core/ort/empty_sequence.hpp"

#include <cstdint>
#include <string>

#include "core/base/error.hpp"
#include "core/onnx/element_types.hpp"

namespace ortmulti {
namespace {

// Protobuf's wire format, of numbers and lengths below 128 only: that is all that this model has.
std::string number(int field, int value) { return {static_cast<char>(field << 3), static_cast<char>(value)}; }

std::string bytes(int field, const std::string& content) {
  return std::string{static_cast<char>((field << 3) | 2), static_cast<char>(content.size())} + content;
}

}  // namespace

// "empty" = SequenceEmpty(), whose element types have the same numbers in ONNX's files and in ONNX Runtime.
std::string empty_sequence_model(ONNXTensorElementDataType element_type) {
  constexpr int ir_version = 8;
  constexpr int opset = 11;
  constexpr int integer_attribute = 2;
  const int element = static_cast<int>(element_type);
  const std::string dtype = bytes(1, "dtype") + number(3, element) + std::string{'\xa0', '\x01', integer_attribute};
  const std::string node = bytes(2, "empty") + bytes(4, "SequenceEmpty") + bytes(5, dtype);
  const std::string tensor = bytes(1, number(1, element));
  const std::string output = bytes(1, "empty") + bytes(2, bytes(4, bytes(1, tensor)));
  const std::string graph = bytes(1, node) + bytes(2, "graph") + bytes(12, output);
  return number(1, ir_version) + bytes(7, graph) + bytes(8, number(2, opset));
}

Ort::SessionOptions small_session_options() {
  Ort::SessionOptions options;
  options.SetIntraOpNumThreads(1);
  options.SetInterOpNumThreads(1);
  options.DisableCpuMemArena();
  return options;
}

Ort::Value make_empty_sequence(OnnxRuntime& runtime, ONNXTensorElementDataType element_type) {
  try {
    const std::string model = empty_sequence_model(element_type);
    Ort::Session session(runtime.env(), model.data(), model.size(), small_session_options());
    const char* const name = "empty";
    Ort::Value value{nullptr};
    session.Run(Ort::RunOptions{nullptr}, nullptr, nullptr, 0, &name, &value, 1);
    return value;
  } catch (const Ort::Exception& exception) {
    throw from_onnxruntime(exception,
                           std::string("making an empty sequence of tensor(") + element_type_name(element_type) + ")");
  }
}

}  // namespace ortmulti
