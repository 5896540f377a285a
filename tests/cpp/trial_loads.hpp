#pragma once

#include <vector>

#include "trial_ground.hpp"

namespace ortmulti::tests {

/// Loads as users have them. The models' times are those of measured ones, rounded.
std::vector<TrialLoad> trial_loads();

}  // namespace ortmulti::tests
