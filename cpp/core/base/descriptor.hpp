#pragma once

#include <utility>

#include "core/base/non_copyable.hpp"

namespace ortmulti {

/// An open file descriptor. A forked child has none of its parent's: what these keep alive goes with the parent.
class Descriptor : NonCopyable {
 public:
  Descriptor() = default;
  /// Takes it over. Throws Error where the process has too many of them, after it was closed.
  explicit Descriptor(int descriptor);
  Descriptor(Descriptor&& other) noexcept : place_(std::exchange(other.place_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(place_, other.place_);
    return *this;
  }
  ~Descriptor();

  /// -1: none.
  int get() const noexcept;
  explicit operator bool() const noexcept { return get() >= 0; }

 private:
  int place_ = -1;
};

}  // namespace ortmulti
