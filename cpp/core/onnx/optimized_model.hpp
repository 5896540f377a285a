#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "core/onnx/weight_list.hpp"

namespace ortmulti {

struct SplitModel {
  WeightList weights;           ///< Shared ones, in the original's files and in weights.bin.
  std::uint64_t own_bytes = 0;  ///< Of weights.bin.
};

/// Names in the folder that split_optimized_model writes.
constexpr const char* split_model_file = "model.onnx";
constexpr const char* split_weights_file = "weights.bin";
constexpr const char* split_shared_file = "shared";

/// Makes of a model that ONNX Runtime saved (`saved`, with the original's external data untouched) a small graph in
/// `folder`, whose big tensors are external:
///   model.onnx   the graph; tensors in typed fields and small ones stay in it
///   weights.bin  what the original's files do not have; not there if that is nothing
///   shared       empty: where the graph says that the shared weights of the original's files lie, which ONNX Runtime
///                does not open from here. One that a session does not take is an error and never zeros.
/// `original` is the original model, or empty for one that was no file; `data_folder` is the folder of its external
/// data, or its `sources` are given. Initializers named in `unshared` are not shared. After an Error, which names the
/// file, none of the three is left; a request to stop soon ends in an Error, too. `inputs` are those of the original
/// model, if they are known: up to IR version 3 initializers are inputs too, and ONNX Runtime keeps such an input when
/// it has computed another initializer from it. The graph leaves it out.
SplitModel split_optimized_model(const std::string& saved, const std::string& original, const std::string& data_folder,
                                 const std::string& folder, const std::set<std::string>& unshared,
                                 const std::stop_token& stop = {}, const SourcesByLocation& sources = {},
                                 const std::optional<std::set<std::string>>& inputs = std::nullopt);

/// Names of those `given` weights of the `original` model that are initializers of the model `saved` too, and not the
/// same bytes in the same place: an optimizer may change an initializer and leave its name. Throws Error.
std::vector<std::string> changed_weights(const std::string& saved, const std::string& original,
                                         const std::string& data_folder, const WeightList& given);

}  // namespace ortmulti
