#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace ortmulti {

inline std::string in_quotes(const std::string& text) { return "'" + text + "'"; }

/// "a, b, c": what `text` makes of each item.
std::string listed(const auto& items, const auto& text) {
  std::string result;
  for (const auto& item : items) {
    result += (result.empty() ? "" : ", ") + std::string(text(item));
  }
  return result;
}

/// The number that the text is: digits alone. None for anything else, and for one that the type does not hold.
template <typename Number>
std::optional<Number> whole_number(std::string_view text) {
  Number value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = result.ec == std::errc() && result.ptr == text.data() + text.size() && text.front() != '-';
  return whole ? std::optional(value) : std::nullopt;
}

/// The text with small letters in place of A to Z, whatever the locale.
inline std::string lower_case(std::string text) {
  for (char& letter : text) {
    letter = letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  }
  return text;
}

}  // namespace ortmulti
