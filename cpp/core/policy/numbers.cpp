#include "core/policy/numbers.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "core/base/error.hpp"

namespace ortmulti {
namespace {

constexpr const char* variable = "ORTMULTI_NUMBERS";

struct Ends {
  const AnyNumber* first = nullptr;
  AnyNumber* last = nullptr;
};

Ends& ends() noexcept {
  static Ends of_all;
  return of_all;
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
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

std::optional<double> override_of(std::string_view wanted) noexcept {
  std::string_view rest = overrides();
  std::string_view name;
  std::string_view value;
  while (next_override(rest, name, value)) {
    if (name == wanted) {
      return parse(value);
    }
  }
  return std::nullopt;
}

}  // namespace

AnyNumber::AnyNumber(const char* name, double value, bool whole, const char* unit, const char* meaning,
                     const char* evidence) noexcept
    : name_(name),
      unit_(unit),
      meaning_(meaning),
      evidence_(evidence),
      by_default_(value),
      whole_(whole),
      value_(value) {
  const std::optional<double> other = override_of(name);
  value_ = why_not(other) == nullptr ? other.value_or(value) : value;
  Ends& all = ends();
  (all.last == nullptr ? all.first : all.last->next_) = this;
  all.last = this;
}

const AnyNumber* AnyNumber::first() noexcept { return ends().first; }

const char* AnyNumber::why_not(std::optional<double> value) const noexcept {
  constexpr double largest = 1e9;  // as seconds, it fits twice into what counts nanoseconds
  const bool fits = value && *value >= (whole_ ? 1 : 0) && *value <= largest;
  if (whole_) {
    return fits && std::floor(*value) == *value ? nullptr : "give a whole number from 1 to 1e9";
  }
  return fits ? nullptr : "give a number from 0 to 1e9";
}

void AnyNumber::check_overrides() {
  std::set<std::string_view> seen;
  std::string_view rest = overrides();
  std::string_view name;
  std::string_view value;
  while (next_override(rest, name, value)) {
    const AnyNumber* found = first();
    while (found != nullptr && found->name() != name) {
      found = found->next();
    }
    const char* why =
        found == nullptr ? "no number has this name; docs/inside/numbers.md lists them" : found->why_not(parse(value));
    why = seen.insert(name).second ? why : "it is there twice: leave one";
    if (why != nullptr) {
      throw Error(ErrorKind::invalid_argument,
                  std::string(variable) + " has '" + std::string(name) + "=" + std::string(value) + "': " + why);
    }
  }
}

}  // namespace ortmulti
