#include "core/onnx/wire.hpp"

#include <algorithm>

#include "core/base/error.hpp"

namespace ortmulti {
namespace {

constexpr std::uint64_t smallest_window = 512;
constexpr std::uint64_t largest_window = std::uint64_t{128} << 10U;

void append_varint(std::string& out, std::uint64_t value) {
  for (; value > 0x7F; value >>= 7U) {
    out.push_back(static_cast<char>((value & 0x7FU) | 0x80U));
  }
  out.push_back(static_cast<char>(value));
}

// A field's tag, and the number behind it.
std::string beginning(std::uint64_t number, Wire wire, std::uint64_t value) {
  std::string result;
  append_varint(result, number << 3U | static_cast<unsigned>(wire));
  append_varint(result, value);
  return result;
}

}  // namespace

void malformed_model(const char* what) {
  throw Error(ErrorKind::invalid_protobuf, std::string("not an ONNX model: ") + what);
}

void ModelBytes::append_to(std::string& out, std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t length = end - begin;
  if (length == 0) {
    return;
  }
  if (begin < window_begin_ || end > window_begin_ + window_size_) {
    if (length > largest_window) {
      const std::size_t before = out.size();
      out.resize(before + length);
      source_->read(&out[before], length, begin);
      return;
    }
    move_window(begin, length);
  }
  out.append(reinterpret_cast<const char*>(window_ + (begin - window_begin_)), length);
}

void ModelBytes::move_window(std::uint64_t begin, std::uint64_t length) {
  const std::uint64_t window_end = window_begin_ + window_size_;
  // Much at a time of fields that follow each other, little behind a tensor's bytes that were left out.
  const bool follows = begin >= window_begin_ && begin <= window_end + next_size_;
  next_size_ = follows ? std::clamp(2 * next_size_, smallest_window, largest_window) : smallest_window;
  length = std::min(std::max(length, next_size_), size_ - begin);
  buffer_.resize(largest_window);
  window_size_ = 0;  // in case that reading fails
  source_->read(buffer_.data(), length, begin);
  window_ = buffer_.data();
  window_begin_ = begin;
  window_size_ = length;
}

bool WireMessage::next(WireField& field) {
  if (at_ == end_) {
    return false;
  }
  field = WireField();
  field.model = &model_;
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
      field.begin = at_;  // also of a field that is cut off
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
    const unsigned char byte = model_.at(at_++);
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
  if (length > end_ - at_) {
    malformed_model("a field is longer than what is left");
  }
  at_ += length;
}

void add_integers(const WireField& field, std::vector<std::int64_t>& integers) {
  for_integers(field, [&](std::uint64_t value) { integers.push_back(static_cast<std::int64_t>(value)); });
}

std::string operator_name(const std::string& domain, const std::string& type) {
  return domain.empty() || domain == "ai.onnx" ? type : domain + ":" + type;
}

std::string wire_field(std::uint64_t number, std::uint64_t value) { return beginning(number, Wire::varint, value); }

std::string text_of(const WireField& message, std::uint64_t number) {
  std::string text;
  WireMessage fields(message);
  for (WireField field; fields.next(field);) {
    if (field.wire == Wire::bytes && field.number == number) {
      text = field.text();
    }
  }
  return text;
}

std::string wire_header(std::uint64_t number, std::uint64_t size) { return beginning(number, Wire::bytes, size); }

std::string wire_field(std::uint64_t number, std::string_view bytes) {
  return wire_header(number, bytes.size()).append(bytes);
}

}  // namespace ortmulti
