#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/error.hpp"
#include "core/onnx/wire.hpp"

namespace ortmulti::serve {

/// Numbers of a tensor's fields, in requests and answers, which are the protocol's.
namespace tensor_field {
constexpr std::uint64_t name = 1, datatype = 2, shape = 3, parameters = 4, contents = 5;
}

/// The bytes of a field of this message.
inline std::string_view bytes_in(std::string_view message, const WireField& field) {
  return message.substr(field.begin, field.end - field.begin);
}

[[noreturn]] inline void malformed_request() {
  throw Error(ErrorKind::invalid_protobuf, "Exception deserializing request!");
}

}  // namespace ortmulti::serve
