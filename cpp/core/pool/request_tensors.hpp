#pragma once

#include <onnxruntime_cxx_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/device.hpp"
#include "core/pool/gpu_session.hpp"
#include "core/pool/request.hpp"

namespace ortmulti {

/// A tensor as a run on a GPU sees it.
struct RequestTensor {
  const char* name = nullptr;
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::vector<std::int64_t> shape;
  std::size_t bytes = 0;
  const void* data = nullptr;
  Device device;                      ///< Where it lies.
  const Ort::Value* value = nullptr;  ///< The request's.
  bool to_copy = false;               ///< To the session's device, before it runs.
};

/// The request's inputs; nothing where one is no tensor of elements of a fixed size.
std::optional<std::vector<RequestTensor>> tensors_of(const Request& request, const GpuSession& session);

/// The GPU on which inputs lie, if it is one.
std::optional<Device> device_of_inputs(const Request& request);

/// By which inputs of the same names, types and shapes are known.
std::string shapes_key(const std::vector<RequestTensor>& inputs);

/// The bytes that they take, each at an address that every type may have.
std::size_t aligned(std::size_t bytes);

}  // namespace ortmulti
