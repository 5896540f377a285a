#pragma once

#include "core/serve/asked.hpp"
#include "core/serve/infer.hpp"

namespace ortmulti::serve {

/// Compares what was asked with the model, and fills in the request's inputs, outputs and all else that they say.
/// Throws Refused, and Error where a mask cannot be made.
void fill_in(InferRequest& request, const Asked& asked);

}  // namespace ortmulti::serve
