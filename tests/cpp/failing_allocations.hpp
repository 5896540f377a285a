#pragma once

#include <functional>

namespace ortmulti::tests {

/// Calls with the 1st, 2nd, ... allocation of this thread failing, until a call needs no more than that: then returns
/// how many failed. Before each call `prepare` is called, and after each that failed, which must have said so, `check`.
int with_each_allocation_failing(const std::function<void()>& prepare, const std::function<void()>& call,
                                 const std::function<void()>& check);

}  // namespace ortmulti::tests
