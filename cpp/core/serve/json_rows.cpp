#include "core/serve/json_rows.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace ortmulti::serve {
namespace {

constexpr std::size_t most_digits = 16;  // -1.17549435e-38
constexpr std::size_t most_of_index = 20;

char* put(char* to, std::string_view text) { return std::ranges::copy(text, to).out; }

char* put_numbers(char* to, std::span<const float> row) {
  *to++ = '[';
  for (const float number : row) {
    to = std::to_chars(to, to + most_digits, number).ptr;
    *to++ = ',';
  }
  to[-1] = ']';
  return to;
}

char* put_base64(char* to, std::span<const float> row) {
  constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  constexpr unsigned bits = 6;
  *to++ = '"';
  for (std::span<const std::byte> bytes = std::as_bytes(row); !bytes.empty();) {
    const std::size_t count = std::min<std::size_t>(bytes.size(), 3);
    unsigned three = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      three = (three << 8U) | (i < count ? std::to_integer<unsigned>(bytes[i]) : 0U);
    }
    for (unsigned i = 0; i < 4; ++i) {
      *to++ = i <= count ? letters[(three >> (bits * (3 - i))) & 63U] : '=';
    }
    bytes = bytes.subspan(count);
  }
  *to++ = '"';
  return to;
}

}  // namespace

bool JsonRows::is_finite() const noexcept {
  return std::ranges::all_of(numbers, [](float number) { return std::isfinite(number); });
}

std::size_t JsonRows::most_bytes() const noexcept {
  const std::size_t around = before.size() + most_of_index + behind_number.size() + behind.size();
  // Of base64 it is less: six letters for a number, and four more for a row.
  constexpr std::size_t ends = 8;
  return head.size() + tail.size() + rows() * (around + ends + columns * (most_digits + 1));
}

char* JsonRows::write(char* to) const {
  to = put(to, head);
  for (std::size_t i = 0; i < rows(); ++i) {
    if (i > 0) {
      *to++ = ',';
    }
    if (!before.empty()) {
      to = put(to, before);
      to = std::to_chars(to, to + most_of_index, i).ptr;
      to = put(to, behind_number);
    }
    const std::span<const float> row = numbers.subspan(i * columns, columns);
    to = form == Form::base64 ? put_base64(to, row) : put_numbers(to, row);
    to = put(to, behind);
  }
  return put(to, tail);
}

}  // namespace ortmulti::serve
