#pragma once

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <map>

#include "core/base/error.hpp"

namespace ortmulti {

/// A reason why work that failed is done once more.
struct Retry {
  std::function<bool(const Error&)> concerns;
  std::size_t times = 1;  ///< At most.
  /// Called before each, with how often it was tried again for this reason before.
  std::function<void(std::size_t before)> prepare = nullptr;
};

inline bool is_lack_of_memory(const Error& error) { return error.kind() == ErrorKind::out_of_memory; }

/// Does the work, and again for each reason as often as that says. Reasons add up, they do not multiply. Throws the
/// error that no reason concerns any more, or what a preparation throws.
auto with_retries(const std::initializer_list<Retry>& reasons, const auto& work) {
  std::map<const Retry*, std::size_t> tried;
  for (;;) {
    const Retry* again = nullptr;
    try {
      return work();
    } catch (const Error& error) {
      for (const Retry& reason : reasons) {
        if (again == nullptr && tried[&reason] < reason.times && reason.concerns(error)) {
          again = &reason;
        }
      }
      if (again == nullptr) {
        throw;
      }
    }
    // Outside of the handler: the error may hold what the preparation waits for.
    const std::size_t before = tried[again]++;
    if (again->prepare) {
      again->prepare(before);
    }
  }
}

}  // namespace ortmulti
