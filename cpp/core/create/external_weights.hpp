#pragma once

#include <cstdint>

#include "core/onnx/weight_list.hpp"
#include "core/ort/options.hpp"

namespace ortmulti {

/// Moves values for external data from the options to a list of weights: those of at least `min_bytes`, in the host's
/// memory.
WeightList take_external_weights(SessionOptions& options, std::uint64_t min_bytes);

/// Adds weights to the options as values for external data. Reads those that are not in memory. Throws Error.
void add_external_weights(SessionOptions& options, const WeightList& list);

}  // namespace ortmulti
