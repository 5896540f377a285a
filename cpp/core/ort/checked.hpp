#pragma once

#include <onnxruntime_cxx_api.h>

#include <string>

#include "core/base/error.hpp"

namespace ortmulti {

/// Calls ONNX Runtime. Its exception becomes an Error with the context, see from_onnxruntime().
auto checked(const std::string& context, const auto& function) {
  try {
    return function();
  } catch (const Ort::Exception& exception) {
    throw from_onnxruntime(exception, context);
  }
}

}  // namespace ortmulti
