#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/policy/numbers.hpp"

namespace ortmulti {

/// Decides when to give back the memory of a session's largest requests: once the requests of a whole time span were at
/// most half as large. The caller looks twice per span. Not thread-safe.
class IdleMemory {
 public:
  struct Due {
    bool memory = false;
    bool graphs = false;
  };

  /// `largest`: the bytes of the largest request since the last look; 0: there was none.
  Due look(std::uint64_t largest) {
    const std::uint64_t lately = std::max(largest, before_);
    before_ = largest;
    most_ = std::max(most_, largest);
    quiet_ = largest == 0 ? std::min(quiet_ + 1, *numbers::idle_looks_until_graphs) : 0;
    const bool found = lately < most_ && lately <= most_ / 2;
    const bool memory = found || tries_left_ > 0;
    tries_left_ = found ? *numbers::idle_max_tries : tries_left_;
    const bool graphs = quiet_ == *numbers::idle_looks_until_graphs && graphs_;
    most_ = found ? lately : most_;
    graphs_ = largest != 0 || (graphs_ && !graphs);
    return {memory, graphs};
  }

  /// Notes whether all that was due was given back. If runs were in the way, it stays due for a few more looks.
  void given_back(bool whole) { tries_left_ -= whole ? tries_left_ : std::min<std::size_t>(tries_left_, 1); }

  /// Whether a later look may find something although no request comes.
  bool watched() const noexcept { return most_ != 0 || graphs_ || tries_left_ > 0; }

 private:
  std::uint64_t before_ = 0;  // the largest before the last look
  std::uint64_t most_ = 0;    // since memory was given back
  std::size_t quiet_ = 0;     // looks
  std::size_t tries_left_ = 0;
  bool graphs_ = false;  // there may be some
};

/// Decides when a thread ends that ran a session on a GPU, since ONNX Runtime keeps handles for it: once it did not run
/// the session for a while. The caller looks as often as at IdleMemory. Not thread-safe.
class IdleThread {
 public:
  /// `ran`: whether it ran the session since the last look. Returns whether it shall end; another one has run nothing.
  bool look(bool ran) {
    looks_ = ran ? 0 : looks_ ? *looks_ + 1 : looks_;
    const bool due = looks_ && *looks_ == *numbers::idle_looks_until_threads;
    looks_ = due ? std::nullopt : looks_;
    return due;
  }
  /// Whether it ran the session: a later look may find something although no request comes.
  bool watched() const noexcept { return looks_.has_value(); }

 private:
  std::optional<std::size_t> looks_;  // since it ran the session; none: it did not
};

}  // namespace ortmulti
