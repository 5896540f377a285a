#pragma once

#include <string>

namespace ortmulti {

inline std::string quoted(const std::string& text) { return "'" + text + "'"; }

/// "a, b, c": what `text` makes of each item.
template <typename Items, typename Text>
std::string listed(const Items& items, const Text& text) {
  std::string result;
  for (const auto& item : items) {
    result += (result.empty() ? "" : ", ") + std::string(text(item));
  }
  return result;
}

}  // namespace ortmulti
