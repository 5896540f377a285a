#pragma once

#include <cstddef>
#include <iterator>
#include <string_view>

namespace ortmulti::serve {

/// A number as JSON has it.
struct JsonNumber {
  std::string_view text;  ///< Empty: there is none.
  bool real = false;      ///< It has a fraction or an exponent.
};

/// The number with which the text begins: a double has its value within its range, 64 bits hold it if it is an integer.
/// None for those that are longer: somebody else has to look at them.
JsonNumber plain_number(std::string_view text) noexcept;

/// Text of JSON, read by a reader of all JSON. Whoever gets that one's events may read numbers ahead of it: they are
/// nearly all bytes of a request, and it takes ten times as long for them.
class JsonCursor {
 public:
  explicit JsonCursor(std::string_view text) noexcept : left_(text) {}

  /// Reads the numbers of a list whose bracket was read last, and calls `put` for each, up to the list's end or to
  /// what is no plain number. The reader of all JSON finds the rest of the list there, as if it began there.
  void read_numbers(const auto& put) {
    for (;;) {
      skip_blanks(left_);
      const JsonNumber number = plain_number(left_);
      std::string_view next = left_.substr(number.text.size());
      skip_blanks(next);
      if (number.text.empty() || next.empty()) {
        return;
      }
      if (next.front() == ',') {
        next.remove_prefix(1);
        skip_blanks(next);
        if (next.empty() || next.front() == ']') {  // an error, which the other reader finds
          return;
        }
      } else if (next.front() != ']') {
        return;
      }
      put(number);
      left_ = next;
    }
  }

  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = char;
    using difference_type = std::ptrdiff_t;
    using pointer = const char*;
    using reference = const char&;

    Iterator() = default;  ///< The end.
    explicit Iterator(JsonCursor& of) noexcept : of_(&of) {}
    reference operator*() const noexcept { return of_->left_.front(); }
    Iterator& operator++() noexcept {
      of_->left_.remove_prefix(1);
      return *this;
    }
    bool operator==(const Iterator& other) const noexcept { return at_end() == other.at_end(); }

   private:
    bool at_end() const noexcept { return of_ == nullptr || of_->left_.empty(); }

    JsonCursor* of_ = nullptr;
  };
  Iterator begin() noexcept { return Iterator(*this); }
  static Iterator end() noexcept { return {}; }

 private:
  static void skip_blanks(std::string_view& text) noexcept {
    while (!text.empty() &&
           (text.front() == ' ' || text.front() == '\n' || text.front() == '\t' || text.front() == '\r')) {
      text.remove_prefix(1);
    }
  }

  std::string_view left_;
};

}  // namespace ortmulti::serve
