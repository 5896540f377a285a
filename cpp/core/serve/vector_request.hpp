#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/serve/call.hpp"

namespace ortmulti::serve {

/// What requests of vectors have in common that are answered together.
struct VectorWish {
  enum class Cut : std::uint8_t { none, right, left };  ///< Where longer texts are cut.

  std::string path;   ///< "/embed"
  std::string model;  ///< Empty: none is named.
  std::string prompt;
  std::optional<std::int64_t> dimensions;
  std::optional<bool> normalize;
  Cut cut = Cut::right;
  bool base64 = false;

  bool operator==(const VectorWish&) const = default;
};

/// A request of vectors.
struct AskedVectors {
  VectorWish wish;
  std::vector<std::string> texts;  ///< One at least, and none is empty.
};

/// Reads a short request of OpenAI's embeddings, or of text-embeddings-inference's, with texts alone. Nothing: it is
/// none, or Python is to say what is wrong with it.
std::optional<AskedVectors> read_vectors(const Call& call);

/// Counts the memory of a request's texts, and of its answer, in place of what was counted before. False: there is
/// none.
bool reserve_texts(Call& call, std::size_t answer = 0);

}  // namespace ortmulti::serve
