#pragma once

#include <vector>

#include "trial_ground.hpp"

namespace ortmulti::tests {

/// Loads as users have them. The models' times are those of measured ones, rounded.
std::vector<TrialLoad> trial_loads();
/// Joined requests that come by chance, at a share of the most that runs of 32 rows answer.
std::vector<TrialLoad> trial_loads_by_chance();

}  // namespace ortmulti::tests
