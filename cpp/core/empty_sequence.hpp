#pragma once

#include <onnxruntime_cxx_api.h>

#include "core/onnxruntime_library.hpp"

namespace ortmulti {

/// A sequence of no tensors of this element type. The C API makes a sequence only of values that are there; this is
/// what ONNX's operator SequenceEmpty gives, for which each call takes a short-lived session. Throws Error.
Ort::Value make_empty_sequence(OnnxRuntime& runtime, ONNXTensorElementDataType element_type);

}  // namespace ortmulti
