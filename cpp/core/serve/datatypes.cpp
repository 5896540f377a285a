#include "core/serve/datatypes.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "core/onnx/element_types.hpp"

namespace ortmulti::serve {
namespace {

constexpr std::size_t length_bytes = 4;  // before each string

std::size_t length_at(std::string_view bytes) noexcept {
  std::uint32_t length = 0;
  std::memcpy(&length, bytes.data(), length_bytes);  // little-endian, as all machines that ONNX Runtime is built for
  return length;
}

}  // namespace

std::size_t utf8_character(std::string_view text) noexcept {
  const auto byte = [text](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const auto follows = [&](std::size_t at, unsigned from = 0x80, unsigned to = 0xBF) {
    return at < text.size() && byte(at) >= from && byte(at) <= to;
  };
  const unsigned first = byte(0);
  if (first < 0x80) {
    return 1;
  }
  if (first >= 0xC2 && first <= 0xDF) {
    return follows(1) ? 2 : 0;
  }
  if (first >= 0xE0 && first <= 0xEF) {  // surrogates are no characters
    return follows(1, first == 0xE0 ? 0xA0 : 0x80, first == 0xED ? 0x9F : 0xBF) && follows(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    return follows(1, first == 0xF0 ? 0x90 : 0x80, first == 0xF4 ? 0x8F : 0xBF) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

bool is_utf8(std::string_view text) noexcept {
  constexpr std::uint64_t high_bits = 0x8080808080808080;
  while (!text.empty()) {
    std::uint64_t word = high_bits;
    if (text.size() >= sizeof(word)) {
      std::memcpy(&word, text.data(), sizeof(word));
    }
    const std::size_t size = (word & high_bits) == 0 ? sizeof(word) : utf8_character(text);
    if (size == 0) {
      return false;
    }
    text.remove_prefix(size);
  }
  return true;
}

void normalize_bools(std::span<std::byte> bytes) noexcept {
  for (std::byte& byte : bytes) {
    byte = std::byte{byte != std::byte{0}};
  }
}

std::uint16_t to_half(double number) noexcept {
  constexpr int bits = 10;
  constexpr int least_exponent = -14;
  const std::uint16_t sign = std::signbit(number) ? 0x8000 : 0;
  const double size = std::fabs(number);
  if (std::isnan(number)) {
    return static_cast<std::uint16_t>(sign | 0x7E00U);
  }
  if (size >= 65520.0) {
    return static_cast<std::uint16_t>(sign | 0x7C00U);
  }
  if (size == 0) {
    return sign;
  }
  const int exponent = std::max(std::ilogb(size), least_exponent);
  // In units of the last place, rounded to even; a carry goes on into the exponent.
  const auto units = static_cast<unsigned>(std::nearbyint(std::ldexp(size, bits - exponent)));
  const unsigned biased = units < 1U << bits ? 0 : static_cast<unsigned>(exponent - least_exponent);
  return static_cast<std::uint16_t>(sign | (units + (biased << bits)));
}

double from_half(std::uint16_t half) noexcept {
  const unsigned exponent = half >> 10U & 0x1FU;
  const unsigned fraction = half & 0x3FFU;
  double size = std::ldexp(static_cast<double>(exponent == 0 ? fraction : fraction + 1024),
                           static_cast<int>(std::max(exponent, 1U)) - 25);
  if (exponent == 0x1F) {
    size = fraction == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  return (half & 0x8000U) != 0 ? -size : size;
}

std::uint16_t to_bfloat(float number) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(number);
  if (std::isnan(number)) {
    return static_cast<std::uint16_t>((bits >> 16U & 0x8000U) | 0x7FC0U);
  }
  return static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16U & 1U)) >> 16U);
}

float from_bfloat(std::uint16_t bfloat) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bfloat) << 16U);
}

namespace {

std::string_view range_of(ONNXTensorElementDataType type) noexcept {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8:
      return "-128 to 127";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16:
      return "-32768 to 32767";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32:
      return "-2147483648 to 2147483647";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64:
      return "-9223372036854775808 to 9223372036854775807";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8:
      return "0 to 255";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16:
      return "0 to 65535";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32:
      return "0 to 4294967295";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64:
      return "0 to 18446744073709551615";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
      return "-65504 to 65504";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
      return "-3.4028235e+38 to 3.4028235e+38";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
      return "-3.3895314e+38 to 3.3895314e+38";
    default:
      return "that of 64 bits";
  }
}

}  // namespace

void ValueWriter::fail(std::string problem) {
  if (problem_.empty()) {
    problem_ = std::move(problem);
  }
  ++next_;
}

void ValueWriter::fail_range(const std::string& value) {
  const ElementType* const type = find_element_type(type_);
  fail(type == nullptr ? "another type"
                       : value + " is outside the range of " + type->protocol + ", " + std::string(range_of(type_)));
}

template <typename Element>
void ValueWriter::write(Element element) noexcept {
  if (next_ < count_ && data_ != nullptr) {
    std::memcpy(data_ + next_ * sizeof(Element), &element, sizeof(Element));
  }
  ++next_;
}

template <typename Element>
void ValueWriter::write_integer(auto value) {
  if (std::in_range<Element>(value)) {
    write(static_cast<Element>(value));
  } else {
    fail_range(std::to_string(value));
  }
}

void ValueWriter::put_integer(auto value) {
  switch (type_) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8:
      return write_integer<std::int8_t>(value);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16:
      return write_integer<std::int16_t>(value);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32:
      return write_integer<std::int32_t>(value);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64:
      return write_integer<std::int64_t>(value);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8:
      return write_integer<std::uint8_t>(value);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16:
      return write_integer<std::uint16_t>(value);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32:
      return write_integer<std::uint32_t>(value);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64:
      return write_integer<std::uint64_t>(value);
    default:
      return write_float(static_cast<double>(value));
  }
}

void ValueWriter::write_float(double value) {
  const auto overflow = [&] {
    std::string text;
    append_json_number(text, value);
    fail_range(text);
  };
  // What rounds to more than the largest float is infinity.
  constexpr double first_above = 0x1.ffffffp127;
  const bool finite = std::isfinite(value);
  switch (type_) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE:
      return write(value);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
      return finite && std::fabs(value) >= first_above ? overflow() : write(static_cast<float>(value));
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16: {
      const std::uint16_t half = to_half(value);
      return finite && (half & 0x7FFFU) == 0x7C00U ? overflow() : write(half);
    }
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16: {
      if (finite && std::fabs(value) >= first_above) {
        return overflow();
      }
      const std::uint16_t bfloat = to_bfloat(static_cast<float>(value));
      return finite && (bfloat & 0x7FFFU) == 0x7F80U ? overflow() : write(bfloat);
    }
    default:
      return fail("another type");
  }
}

void ValueWriter::put(bool value) {
  if (type_ == ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL) {
    write(value);
  } else {
    fail("another type");
  }
}

void ValueWriter::put(std::int64_t value) { put_integer(value); }
void ValueWriter::put(std::uint64_t value) { put_integer(value); }
void ValueWriter::put(double value) { write_float(value); }

void ValueWriter::put_large_integer(double value, std::string_view digits) {
  const ElementType* const type = find_element_type(type_);
  if (type != nullptr && type->is_float()) {
    write_float(value);
  } else {
    constexpr std::size_t most = 30;
    fail_range(std::string(digits.substr(0, most)) + (digits.size() > most ? "..." : ""));
  }
}

void ValueWriter::put(std::string_view text) {
  if (strings_ == nullptr) {
    return fail("another type");
  }
  if (!is_utf8(text)) {
    return fail("a string is not UTF-8");
  }
  if (next_ < count_) {
    std::ranges::copy(text, strings_->GetResizedStringTensorElementBuffer(next_, text.size()));
  }
  ++next_;
}

bool holds_strings(std::string_view bytes, std::uint64_t count) noexcept {
  for (; count > 0; --count) {
    if (bytes.size() < length_bytes || bytes.size() - length_bytes < length_at(bytes)) {
      return false;
    }
    bytes.remove_prefix(length_bytes + length_at(bytes));
  }
  return bytes.empty();
}

std::string_view take_string(std::string_view& bytes) noexcept {
  const std::string_view text = bytes.substr(length_bytes, length_at(bytes));
  bytes.remove_prefix(length_bytes + text.size());
  return text;
}

void append_json_text(std::string& out, std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdef";
  out += '"';
  std::size_t plain = 0;  // where what needs no escape begins
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto code = static_cast<unsigned char>(text[i]);
    if (code >= 0x20 && code != '"' && code != '\\') {
      continue;
    }
    out += text.substr(plain, i - plain);
    plain = i + 1;
    constexpr std::string_view letters = "\b\t\n\f\r\"\\";
    constexpr std::string_view names = "btnfr\"\\";
    out += '\\';
    if (const std::size_t at = letters.find(text[i]); at != std::string_view::npos) {
      out += names[at];
    } else {
      out += "u00";
      out += digits[code >> 4U];
      out += digits[code & 0xFU];
    }
  }
  out += text.substr(plain);
  out += '"';
}

void append_json_number(std::string& out, double number) {
  if (!std::isfinite(number)) {
    out += std::isnan(number) ? "NaN" : number > 0 ? "Infinity" : "-Infinity";
    return;
  }
  // Python's repr: the shortest digits, with an exponent below 1e-4 and from 1e16 on.
  std::array<char, 40> text{};
  const double size = std::fabs(number);
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), number,
                                          plain ? std::chars_format::fixed : std::chars_format::scientific);
  const std::string_view written(text.data(), static_cast<std::size_t>(end - text.data()));
  out += written;
  if (plain && written.find('.') == std::string_view::npos) {
    out += ".0";
  }
}

void append_number(std::string& out, std::int64_t number) {
  std::array<char, 24> text{};
  out.append(text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr);
}

namespace {

template <typename Element>
void append_each(std::string& out, const std::byte* data, std::size_t count, const auto& append) {
  for (std::size_t i = 0; i < count; ++i) {
    Element element{};
    std::memcpy(&element, data + i * sizeof(Element), sizeof(Element));
    if (i > 0) {
      out += ',';
    }
    append(element);
  }
}

template <typename Element>
void append_integers(std::string& out, const std::byte* data, std::size_t count) {
  append_each<Element>(out, data, count, [&out](Element element) {
    std::array<char, 24> text{};
    out.append(text.data(), std::to_chars(text.data(), text.data() + text.size(), element).ptr);
  });
}

}  // namespace

void append_json_elements(std::string& out, ONNXTensorElementDataType type, const std::byte* data, std::size_t count) {
  const auto number = [&out](double value) { append_json_number(out, value); };
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL:
      return append_each<std::uint8_t>(out, data, count, [&](auto value) { out += value != 0 ? "true" : "false"; });
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8:
      return append_integers<std::int8_t>(out, data, count);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16:
      return append_integers<std::int16_t>(out, data, count);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32:
      return append_integers<std::int32_t>(out, data, count);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64:
      return append_integers<std::int64_t>(out, data, count);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8:
      return append_integers<std::uint8_t>(out, data, count);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16:
      return append_integers<std::uint16_t>(out, data, count);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32:
      return append_integers<std::uint32_t>(out, data, count);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64:
      return append_integers<std::uint64_t>(out, data, count);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
      return append_each<std::uint16_t>(out, data, count, [&](auto value) { number(from_half(value)); });
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
      return append_each<std::uint16_t>(out, data, count,
                                        [&](auto value) { number(static_cast<double>(from_bfloat(value))); });
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
      return append_each<float>(out, data, count, [&](float value) { number(static_cast<double>(value)); });
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE:
      return append_each<double>(out, data, count, number);
    default:
      break;
  }
}

}  // namespace ortmulti::serve
