#include "core/policy/numbers.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.hpp"

namespace ortmulti {
namespace {

constexpr const char* variable = "ORTMULTI_NUMBERS";

AnyNumber*& last() noexcept {
  static AnyNumber* one = nullptr;
  return one;
}

const AnyNumber*& first_of_all() noexcept {
  static const AnyNumber* one = nullptr;
  return one;
}

std::string_view overrides() noexcept {
  const char* const text = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): nobody sets it meanwhile
  return text == nullptr ? "" : text;
}

// Takes the next "name=value" off the text; false: there is none.
bool next_override(std::string_view& rest, std::string_view& name, std::string_view& value) noexcept {
  if (rest.empty()) {
    return false;
  }
  const std::string_view entry = rest.substr(0, rest.find(','));
  rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
  const std::size_t equals = std::min(entry.find('='), entry.size());
  name = entry.substr(0, equals);
  value = entry.substr(std::min(entry.size(), equals + 1));
  return true;
}

std::optional<double> parse(std::string_view text) noexcept {
  constexpr double largest = 1e12;  // as a count, or as seconds in nanoseconds, it fits
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && value >= 0 && value <= largest ? std::optional(value) : std::nullopt;
}

double value_of(std::string_view wanted, double by_default) noexcept {
  std::string_view rest = overrides();
  std::string_view name;
  std::string_view value;
  while (next_override(rest, name, value)) {
    if (name == wanted) {
      return parse(value).value_or(by_default);
    }
  }
  return by_default;
}

}  // namespace

AnyNumber::AnyNumber(const char* name, double value, const char* unit, const char* meaning,
                     const char* evidence) noexcept
    : name_(name),
      unit_(unit),
      meaning_(meaning),
      evidence_(evidence),
      by_default_(value),
      value_(value_of(name, value)) {
  (last() == nullptr ? first_of_all() : last()->next_) = this;
  last() = this;
}

const AnyNumber* AnyNumber::first() noexcept { return first_of_all(); }

void AnyNumber::check_overrides() {
  std::string_view rest = overrides();
  std::string_view name;
  std::string_view value;
  while (next_override(rest, name, value)) {
    const AnyNumber* found = first();
    while (found != nullptr && found->name() != name) {
      found = found->next();
    }
    if (found == nullptr || !parse(value)) {
      throw Error(ErrorKind::invalid_argument,
                  std::string(variable) + " has '" + std::string(name) + "=" + std::string(value) + "': " +
                      (found == nullptr ? "no number has this name; docs/numbers.md lists them"
                                        : "give a number from 0 to 1e12, as in " + std::string(name) + "=2"));
    }
  }
}

}  // namespace ortmulti
