#include "core/policy/graph_demand.hpp"

#include <algorithm>
#include <cmath>

namespace ortmulti {

std::size_t GraphDemand::record_run(const std::string& shape, std::size_t under_way) {
  Seen& seen = seen_.use(shape);
  if (seen.runs++ == 0) {
    seen.before = runs_;
  }
  ++runs_;
  seen.at_once = std::max(seen.at_once, under_way);
  if (seen.refused || refusals_ >= *numbers::graphs_max_refusals || seen.runs < least_runs_ << seen.postponed) {
    return 0;
  }
  const double share = static_cast<double>(seen.runs) / static_cast<double>(runs_ - seen.before);
  if (least_runs_ > 1 && share < *numbers::graphs_least_share) {  // with 1 they were asked for
    seen = {.postponed = seen.postponed};
    return 0;
  }
  const auto sessions = static_cast<std::size_t>(std::lround(share * static_cast<double>(seen.at_once)));
  return std::clamp<std::size_t>(sessions, 1, *numbers::graphs_max_sessions);
}

void GraphDemand::postpone(const std::string& shape) {
  Seen& seen = seen_.use(shape);
  seen = {.postponed = std::min(seen.postponed + 1, *numbers::graphs_max_postponed), .refused = seen.refused};
}

bool GraphDemand::refuse(const std::string& shape) {
  seen_.use(shape).refused = true;
  return ++refusals_ == *numbers::graphs_max_refusals;
}

}  // namespace ortmulti
