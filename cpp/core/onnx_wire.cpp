#include "core/onnx_wire.hpp"

#include <string>

#include "core/error.hpp"

namespace ortmulti {

void malformed_model(const char* what) {
  throw Error(ErrorKind::invalid_protobuf, std::string("not an ONNX model: ") + what);
}

bool WireMessage::next(WireField& field) {
  if (at_ == end_) {
    return false;
  }
  field = WireField();
  field.start = at_;
  const std::uint64_t tag = varint();
  field.number = tag >> 3U;
  if (field.number == 0) {
    malformed_model("a field has the number 0");
  }
  field.wire = static_cast<Wire>(tag & 7U);
  std::uint64_t length = 0;
  switch (field.wire) {
    case Wire::varint:
      field.value = varint();
      break;
    case Wire::fixed64:
      skip(8);
      break;
    case Wire::fixed32:
      skip(4);
      break;
    case Wire::bytes:
      length = varint();
      skip(length);
      break;
    default:
      malformed_model("a field has an unknown wire type");
  }
  field.end = at_;
  field.begin = at_ - length;
  return true;
}

std::uint64_t WireMessage::varint() {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 70; shift += 7) {
    if (at_ == end_) {
      malformed_model("it ends within a number");
    }
    const unsigned char byte = *at_++;
    if (shift < 64) {
      value |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
    }
    if ((byte & 0x80U) == 0) {
      return value;
    }
  }
  malformed_model("a number is too long");
}

void WireMessage::skip(std::uint64_t length) {
  if (length > static_cast<std::uint64_t>(end_ - at_)) {
    malformed_model("a field is longer than what is left");
  }
  at_ += length;
}

}  // namespace ortmulti
