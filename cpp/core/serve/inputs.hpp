#pragma once

#include "core/serve/asked.hpp"
#include "core/serve/infer.hpp"

namespace ortmulti::serve {

/// Throws Refused where the protocol has no word for its type.
void require_datatype(const Declared& declared);

/// Compares the inputs that were asked with the model, and fills them in with their rows. Throws Refused, and Error
/// where a mask cannot be made.
void make_inputs(InferRequest& request, const Asked& asked);

}  // namespace ortmulti::serve
