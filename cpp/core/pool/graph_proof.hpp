#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/ort/session.hpp"
#include "core/pool/shape_graphs.hpp"

namespace ortmulti {

/// Captures the sample's shape in these sessions, which were created to capture, and proves each graph: see
/// CapturedRunner::prove. Their answers are also compared with the ordinary one, which another optimization may differ
/// from by rounding. `why_not`: called before each capture, says why nothing may be captured now; empty: it may. Throws
/// Error.
ShapeGraphs::GraphSessions capture_graphs(const ShapeGraphs::Sample& sample,
                                          const std::vector<std::shared_ptr<Session>>& made,
                                          const std::function<std::string()>& why_not);

}  // namespace ortmulti
