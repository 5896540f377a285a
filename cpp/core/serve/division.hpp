#pragma once

namespace ortmulti::serve {

/// From now on, integer divisions of the process whose quotient is too large, that of the smallest number by -1, give
/// that number, and the remainder 0, as on other machines than x86-64, which ends the process with SIGFPE. Other
/// signals go to the handler that was there before.
void allow_division_overflow() noexcept;

}  // namespace ortmulti::serve
