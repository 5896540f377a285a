#pragma once

#include <onnxruntime_cxx_api.h>

#include <string>

#include "core/ort/session.hpp"

namespace ortmulti {

/// Reads a declaration out of ONNX Runtime.
ValueInfo make_value_info(std::string name, const Ort::TypeInfo& type);

/// "tensor(float)", "seq(map(int64,tensor(float)))": onnxruntime's spelling.
std::string type_name(const ValueType& type);

Metadata read_metadata(const Ort::ModelMetadata& metadata);

}  // namespace ortmulti
