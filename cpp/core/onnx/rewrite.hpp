#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ortmulti {

/// Where an initializer's bytes are to be from now on.
struct Relocation {
  std::size_t initializer = 0;  ///< Index in ModelIndex::initializers.
  std::string location;         ///< The external file, relative to the model's folder.
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

/// The serialized model with these initializers as external data, their own bytes left out; everything else stays as it
/// is, byte for byte. Throws Error: invalid_protobuf for what is no model, invalid_argument for an initializer that is
/// not there or is moved twice.
std::string relocate_initializers(const unsigned char* model, std::size_t size,
                                  const std::vector<Relocation>& relocations);

}  // namespace ortmulti
