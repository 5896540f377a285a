#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "core/onnx/weight_list.hpp"
#include "core/onnx/wire.hpp"

namespace ortmulti {

/// Where an initializer's bytes are to be from now on.
struct Relocation {
  std::size_t initializer = 0;  ///< Index in ModelIndex::initializers.
  std::string location;         ///< The external file, relative to the model's folder.
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

/// The serialized model with these initializers as external data, their own bytes left out, and without the main
/// graph's inputs of these names; everything else stays as it is, byte for byte. Throws Error: invalid_protobuf for
/// what is no model, invalid_argument for an initializer that is not there.
std::string relocate_initializers(ModelBytes model, const std::vector<Relocation>& relocations,
                                  const std::set<std::string>& dropped_inputs = {});

/// A model file whose weights all lie outside of its graph.
struct OutsideModel {
  std::string bytes;  ///< The model, whose external data lies in `folder`; empty where the file itself is that already.
  std::string folder;  ///< Absolute, without symbolic links.
  WeightList weights;  ///< The file's shareable_weights(), without those that stay in the model.
};

/// Makes the shareable weights within a model file external data of the same file, which is not changed. 64-bit
/// integers stay, since they may be shapes; and all, where the file and its external data lie in different folders.
/// Throws Error, as shareable_weights().
OutsideModel put_weights_outside(const std::string& model_path);

/// The same for a model that is no file: its shareable weights of at least `min_bytes` become external data at
/// `location`, which its own bytes are then. Empty where there are none.
std::string put_weights_at(const Source& model, const std::string& location, std::uint64_t min_bytes);

}  // namespace ortmulti
