#pragma once

#include <onnxruntime_cxx_api.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/device.hpp"
#include "core/ort/value.hpp"

namespace ortmulti::bindings::dlpack {

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

/// The protocol's type of an element as onnxruntime gives and takes it; none for strings and the like. The protocol had
/// none for bool at first, and onnxruntime before 1.32 calls it uint8; nor does that know floats of 8 or integers of 4
/// bits.
std::optional<DataType> type_of(ONNXTensorElementDataType type, bool bool_is_uint8);

/// (device type, device id)
std::pair<int, int> device_of(const Device& device);

/// A capsule with a tensor whose memory `owner` keeps alive, up to the time when whoever takes it gives it back.
pybind11::object make_capsule(void* data, const Device& device, const DataType& type, std::vector<std::int64_t> shape,
                              std::shared_ptr<const void> owner);

/// Takes the tensor out of a capsule, as a value over its memory. Until the value is freed it keeps `source`. What the
/// protocol calls uint8 is bool on demand. Throws Error for what is no capsule or was taken before, and for a tensor
/// that is not contiguous, aligned, and of a type and on a device that ONNX Runtime has; the capsule is then as before.
std::shared_ptr<const Value> take(pybind11::handle capsule, bool is_bool, pybind11::object source);

}  // namespace ortmulti::bindings::dlpack
