#pragma once

#include <cstdint>

#include "core/onnx/weight_list.hpp"
#include "core/ort/options.hpp"

namespace ortmulti {

/// Moves values that the options give for external data into a list of weights. Values of fewer than `min_bytes`, and
/// those on a GPU, stay in the options.
WeightList take_external_weights(SessionOptions& options, std::uint64_t min_bytes);

/// Adds weights to the options as values for external data. Reads those that are not in memory. Throws Error.
void add_external_weights(SessionOptions& options, const WeightList& list);

}  // namespace ortmulti
