#pragma once

#include <onnxruntime_cxx_api.h>

#include <vector>

#include "core/base/error.hpp"
#include "core/ort/session.hpp"

// What the parts of Session have in common.
namespace ortmulti {

/// Adds to an error of exhausted GPU memory how much there is; gives others as they are.
Error with_device_memory(const Error& error, const Device& device);

/// A run that ends before its first operator, for what ONNX Runtime does at the end of a run.
void run_nothing(Ort::Session& session, const std::vector<ValueInfo>& inputs, const std::vector<ValueInfo>& outputs,
                 Ort::RunOptions options);

bool has_arena(const Device& device, const SessionOptions& options);
/// ONNX Runtime never gives back what an arena took first, by default. So that is not to be what a large request needs:
/// here it becomes 1 MB.
void begin_arena(const Ort::Session& session, const Device& device);

}  // namespace ortmulti
