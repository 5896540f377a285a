#pragma once

#include <string>
#include <vector>

#include "core/base/error.hpp"
#include "core/ort/session.hpp"
#include "core/ort/value.hpp"

namespace ortmulti {

/// What to do about a model that ONNX Runtime refused with this text: a line, or empty where the text says all. Reads
/// the model's file.
std::string advice_on_model(const ModelSource& model, const std::string& text, const std::string& version);

/// What to do about inputs that ONNX Runtime refused with this text; `inputs` are the declared ones.
std::string advice_on_inputs(const std::vector<ValueInfo>& inputs, const std::string& text);

/// Rethrows a run's error, which is being handled. Where inputs have several sizes along dimensions that the model
/// gives one name, it becomes one with ErrorKind::invalid_argument that says so; there are models that take such
/// inputs.
[[noreturn]] void rethrow_with_unequal_sizes(const Error& error, const std::vector<ValueInfo>& declared,
                                             const RunInputs& given);

}  // namespace ortmulti
