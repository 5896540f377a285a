#pragma once

#include <utility>

#include "core/base/non_copyable.hpp"

namespace ortmulti {

/// Calls a function when its scope ends, however it ends.
template <typename Function>
class ScopeExit : NonCopyable {
 public:
  explicit ScopeExit(Function function) : function_(std::move(function)) {}
  ~ScopeExit() { function_(); }

 private:
  Function function_;
};

}  // namespace ortmulti
