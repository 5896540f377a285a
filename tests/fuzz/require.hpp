#pragma once

#include <cstdio>
#include <cstdlib>

/// Ends the process, as a finding, where it does not hold.
inline void require(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "%s\n", what);
    std::abort();
  }
}
