#pragma once

#include <string>

namespace ortmulti {

/// How much of a model a device has. A sleep goes to a lower level: at `weights` it has given its weights back, at
/// `session` the sessions too.
enum class SleepLevel { session, weights, awake };

std::string to_string(SleepLevel level);
/// Throws Error with ErrorKind::invalid_argument.
SleepLevel parse_sleep_level(const std::string& name);

}  // namespace ortmulti
