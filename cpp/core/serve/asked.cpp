#include "core/serve/asked.hpp"

#include <algorithm>
#include <array>

namespace ortmulti::serve {
namespace {

using Kind = SentValue::Kind;

bool has(std::string_view text, char letter) { return text.find(letter) != std::string_view::npos; }

void append_escaped(std::string& out, char letter) {
  constexpr std::string_view digits = "0123456789abcdef";
  const auto code = static_cast<unsigned char>(letter);
  switch (letter) {
    case '\n':
      out += "\\n";
      break;
    case '\r':
      out += "\\r";
      break;
    case '\t':
      out += "\\t";
      break;
    default:
      out += "\\x";
      out += digits[code >> 4U];
      out += digits[code & 0xFU];
  }
}

}  // namespace

const char* type_name(Kind kind) noexcept {
  constexpr std::array<const char*, 8> names = {"nothing",  "null",     "a boolean", "a number",
                                                "a number", "a string", "a list",    "an object"};
  return names.at(static_cast<std::size_t>(kind));
}

std::string repr(const SentValue& value) {
  switch (value.kind) {
    case Kind::boolean:
      return value.truthy ? "true" : "false";
    case Kind::integer:
    case Kind::real:
      return value.text;
    case Kind::text:
      return repr(std::string_view(value.text));
    case Kind::list:
      return value.truthy ? "[...]" : "[]";
    case Kind::object:
      return value.truthy ? "{...}" : "{}";
    default:
      return "null";
  }
}

std::string repr(std::string_view text) {
  const char quote = has(text, '\'') && !has(text, '"') ? '"' : '\'';
  std::string out(1, quote);
  for (const char letter : text) {
    const auto code = static_cast<unsigned char>(letter);
    if (letter == quote || letter == '\\') {
      out += '\\';
      out += letter;
    } else if (code < 0x20 || code == 0x7F) {
      append_escaped(out, letter);
    } else {
      out += letter;
    }
  }
  return out + quote;
}

std::string shortened(std::string_view text, std::size_t most) {
  std::size_t at = 0;
  for (; at < text.size(); ++at) {
    const bool begins = (static_cast<unsigned char>(text[at]) & 0xC0U) != 0x80;
    if (begins && most-- == 0) {
      break;
    }
  }
  return std::string(text.substr(0, at));
}

void check_no_shared_memory(bool asked) {
  if (asked) {
    throw Refused(501, "shared memory is not supported: send the data with the request");
  }
}

void check_no_classification(const SentValue& wanted) {
  if (wanted.truthy) {
    throw Refused(501, "classification is not supported: ask for the output itself");
  }
}

std::string SentShape::text() const {
  constexpr std::size_t most_characters = 20;
  std::string out;
  auto next = odd.begin();
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    out += i == 0 ? "" : ",";
    const bool is_odd = next != odd.end() && next->first == i;
    out += shortened(is_odd ? (next++)->second : std::to_string(sizes[i]), most_characters);
  }
  return out;
}

std::optional<std::uint64_t> SentShape::elements() const noexcept {
  if (std::ranges::find(sizes, 0) != sizes.end()) {
    return 0;
  }
  std::uint64_t product = 1;
  for (const std::int64_t size : sizes) {
    if (__builtin_mul_overflow(product, static_cast<std::uint64_t>(size), &product)) {
      return std::nullopt;
    }
  }
  return product;
}

std::string SentShape::elements_text() const {
  if (const auto few = elements()) {
    return std::to_string(*few);
  }
  constexpr std::uint64_t base = 1'000'000'000;
  std::vector<std::uint64_t> digits{1};  // nine at a time, the last ones first
  for (const std::int64_t size : sizes) {
    // In two steps, so that no product has more than 64 bits.
    const auto factor = static_cast<std::uint64_t>(size);
    std::vector<std::uint64_t> product(digits.size() + 3, 0);
    for (std::size_t i = 0; i < digits.size(); ++i) {
      std::uint64_t rest = factor;
      for (std::size_t j = i; rest > 0; ++j, rest /= base) {
        std::uint64_t carry = digits[i] * (rest % base);
        for (std::size_t k = j; carry > 0; ++k) {
          product[k] += carry % base;
          carry = carry / base + product[k] / base;
          product[k] %= base;
        }
      }
    }
    while (product.back() == 0) {
      product.pop_back();
    }
    digits = std::move(product);
  }
  std::string out = std::to_string(digits.back());
  for (std::size_t i = digits.size() - 1; i-- > 0;) {
    const std::string nine = std::to_string(digits[i]);
    out += std::string(9 - nine.size(), '0') + nine;
  }
  return out;
}

}  // namespace ortmulti::serve
