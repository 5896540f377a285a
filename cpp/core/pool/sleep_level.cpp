#include "core/pool/sleep_level.hpp"

#include "core/base/error.hpp"

namespace ortmulti {

std::string to_string(SleepLevel level) {
  switch (level) {
    case SleepLevel::session:
      return "session";
    case SleepLevel::weights:
      return "weights";
    case SleepLevel::awake:
      break;
  }
  return "awake";
}

SleepLevel parse_sleep_level(const std::string& name) {
  for (const SleepLevel level : {SleepLevel::session, SleepLevel::weights, SleepLevel::awake}) {
    if (name == to_string(level)) {
      return level;
    }
  }
  throw Error(ErrorKind::invalid_argument, "a level of sleep is 'weights' or 'session', not '" + name + "'");
}

}  // namespace ortmulti
