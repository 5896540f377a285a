#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "core/base/error.hpp"

namespace ortmulti {

/// How deep a device sleeps, named after what it has given back: `weights` its weights, `session` its sessions, too. In
/// the order of depth.
enum class SleepLevel { awake, weights, session };

/// Describes each level, in the order of the values. All other code asks this table.
struct SleepLevelTraits {
  const char* name;
  /// Whether the device's runners are freed before it sleeps, and a wake adds others. So do all deeper levels.
  bool frees_runners;
};
inline constexpr std::array<SleepLevelTraits, 3> sleep_levels{
    {{"awake", false}, {"weights", false}, {"session", true}}};
inline constexpr auto deepest_level = static_cast<SleepLevel>(sleep_levels.size() - 1);
static_assert(deepest_level == SleepLevel::session, "each level has a row");

inline const SleepLevelTraits& traits_of(SleepLevel level) { return sleep_levels.at(static_cast<std::size_t>(level)); }

inline std::string to_string(SleepLevel level) { return traits_of(level).name; }

/// Throws Error with ErrorKind::invalid_argument.
inline SleepLevel parse_sleep_level(const std::string& name) {
  const auto* const found = std::ranges::find(sleep_levels, name, &SleepLevelTraits::name);
  if (found == sleep_levels.end()) {
    throw Error(ErrorKind::invalid_argument, "unknown level of sleep '" + name + "'");
  }
  return static_cast<SleepLevel>(found - sleep_levels.begin());
}

}  // namespace ortmulti
