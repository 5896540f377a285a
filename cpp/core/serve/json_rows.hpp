#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace ortmulti::serve {

/// Rows of a table of finite numbers as JSON, with commas between them. A row is a list of numbers, or a text of
/// base64 with the numbers' bytes.
struct JsonRows {
  enum class Form : std::uint8_t { numbers, base64 };

  std::span<const float> numbers;
  std::size_t columns = 0;  ///< At least 1.
  Form form = Form::numbers;
  std::string_view head;  ///< Before all rows.
  std::string_view tail;  ///< Behind all rows.
  /// Around each row: a text, its number from 0 on, a text, the row, a text. All empty: the row alone.
  std::string_view before, behind_number, behind;

  std::size_t rows() const noexcept { return numbers.size() / columns; }
  /// Whether JSON can have them.
  bool is_finite() const noexcept;
  /// Never less than write() writes.
  std::size_t most_bytes() const noexcept;
  /// Returns the end of what it wrote. A number has the fewest digits that are read as the same float32.
  char* write(char* to) const;
};

}  // namespace ortmulti::serve
