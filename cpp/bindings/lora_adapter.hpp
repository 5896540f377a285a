#pragma once

#include <onnxruntime_cxx_api.h>

#include <memory>

namespace ortmulti::bindings {

/// onnxruntime's LoraAdapter. Options of runs that use it share what it has loaded, whatever it loads later.
struct LoraAdapter {
  std::shared_ptr<const Ort::LoraAdapter> loaded;  ///< None before it has loaded a file. Atomic.
};

}  // namespace ortmulti::bindings
