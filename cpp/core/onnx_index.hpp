#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ortmulti {

/// Where an initializer's bytes lie.
enum class Storage {
  inline_bytes,  ///< In the model itself, as raw_data.
  external,      ///< In another file, relative to the model's folder.
  typed,         ///< In the model, in a typed field (float_data, string_data, ...).
};

/// One initializer of a model.
struct Initializer {
  std::string name;
  int data_type = 0;  ///< ONNX's TensorProto.DataType.
  std::vector<std::int64_t> shape;
  Storage storage = Storage::typed;
  std::string location;      ///< The external file as the model names it; empty for the others.
  std::uint64_t offset = 0;  ///< In that file, or in the model; 0 for typed ones.
  std::uint64_t length = 0;  ///< Bytes in that file or in the model; from the shape where the model leaves it out.
  std::size_t graph = 0;     ///< 0 for the main graph; sub-graphs are counted from 1.
};

/// Finds every initializer of a serialized ONNX model, those of sub-graphs too, without reading their bytes. Throws
/// Error with ErrorKind::invalid_protobuf for what is no valid protobuf message of a model.
std::vector<Initializer> index_model(const unsigned char* model, std::size_t size);

/// Bits of one element of a TensorProto.DataType; 0 for strings and unknown ones.
unsigned element_bits(int data_type) noexcept;

/// Bytes of all initializers together.
std::uint64_t total_bytes(const std::vector<Initializer>& initializers) noexcept;

}  // namespace ortmulti
