#include "core/serve/json_numbers.hpp"

namespace ortmulti::serve {
namespace {

// An integer of so many characters fits into 64 bits. A real with two digits of exponent is far from the ends of a
// double's range.
constexpr std::size_t longest_integer = 18;
constexpr std::size_t longest_real = 64;
constexpr std::size_t most_exponent_digits = 2;

// Removes digits from the text's beginning. Returns how many there were.
std::size_t take_digits(std::string_view& text) noexcept {
  std::size_t count = 0;
  while (count < text.size() && text[count] >= '0' && text[count] <= '9') {
    ++count;
  }
  text.remove_prefix(count);
  return count;
}

bool take_one_of(std::string_view& text, char one, char other) noexcept {
  const bool there = !text.empty() && (text.front() == one || text.front() == other);
  text.remove_prefix(there ? 1 : 0);
  return there;
}

}  // namespace

JsonNumber plain_number(std::string_view text) noexcept {
  std::string_view left = text;
  take_one_of(left, '-', '-');
  const bool zero = left.starts_with('0');
  const std::size_t digits = take_digits(left);
  if (digits == 0 || (zero && digits > 1)) {
    return {};
  }
  const bool fraction = take_one_of(left, '.', '.');
  if (fraction && take_digits(left) == 0) {
    return {};
  }
  const bool exponent = take_one_of(left, 'e', 'E');
  if (exponent) {
    take_one_of(left, '-', '+');
    const std::size_t there = take_digits(left);
    if (there == 0 || there > most_exponent_digits) {
      return {};
    }
  }
  const bool real = fraction || exponent;
  const std::size_t size = text.size() - left.size();
  return size > (real ? longest_real : longest_integer) ? JsonNumber{} : JsonNumber{text.substr(0, size), real};
}

}  // namespace ortmulti::serve
