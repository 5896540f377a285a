#pragma once

#include <onnxruntime_cxx_api.h>

#include <string>

namespace ortmulti {

class OnnxRuntime;

/// A model without inputs whose one output, "empty", is a sequence of no tensors of this element type: about the
/// smallest that a session can be created of.
std::string empty_sequence_model(ONNXTensorElementDataType element_type);

/// A short-lived session's options: no threads and no arena.
Ort::SessionOptions small_session_options();

/// A sequence of no tensors of this element type. The C API makes a sequence only of values that are there; this is
/// what ONNX's operator SequenceEmpty gives, for which each call takes a short-lived session. Throws Error.
Ort::Value make_empty_sequence(OnnxRuntime& runtime, ONNXTensorElementDataType element_type);

}  // namespace ortmulti
