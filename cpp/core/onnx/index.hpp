#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace ortmulti {

class ModelBytes;
class Source;

/// Where an initializer's bytes lie.
enum class Storage {
  inline_bytes,  ///< In the model itself, as raw_data.
  external,      ///< In another file, relative to the model's folder.
  typed,         ///< In the model, in a typed field (float_data, string_data, ...).
};

struct Initializer {
  std::string name;
  int data_type = 0;  ///< ONNX's TensorProto.DataType.
  std::vector<std::int64_t> shape;
  Storage storage = Storage::typed;
  std::string location;      ///< The external file as the model names it; empty for the others.
  std::uint64_t offset = 0;  ///< In that file, or in the model; 0 for typed ones.
  std::uint64_t length = 0;  ///< Bytes in that file or in the model; from the shape where the model leaves it out.
  std::size_t graph = 0;     ///< 0 for the main graph; sub-graphs are counted from 1.
  bool overridable = false;  ///< Its name is an input of its graph too: a run may give another value.
  bool used = false;         ///< A node of any graph or function has its name as an input, or a graph as an output.
  bool of_function = false;  ///< In a graph within a function: ONNX Runtime renames it where the function is used.
};

/// What is to know about a model before its weights are read.
struct ModelIndex {
  std::vector<Initializer> initializers;
  std::uint64_t nodes = 0;  ///< Of all graphs and functions.
  /// The bytes of attributes that take at least 1 KiB each: tree ensembles, tensors of Constant nodes, but no graphs.
  std::uint64_t attribute_bytes = 0;
  /// The operators of all graphs and functions: "MatMul", or with its domain "com.microsoft:MatMulNBits".
  std::set<std::string> operators;
  /// Names of what ONNX Runtime turns into initializers while loading: outputs of Constant nodes, sparse initializers.
  std::set<std::string> constants;
  std::set<std::string> inputs;  ///< Of the main graph, those with initializers too.
  /// The external files of tensors that are no initializers: of attributes and of sparse initializers.
  std::set<std::string> other_locations;
  std::uint64_t ir_version = 0;  ///< 0 where the model has none.
  std::map<std::string, std::uint64_t>
      opsets;  ///< The release of each domain's operators; "ai.onnx" is the standard's.
};

/// Finds every initializer of a serialized ONNX model, those of sub-graphs too, without reading their bytes. Throws
/// Error with ErrorKind::invalid_protobuf for what is no valid protobuf message of a model.
ModelIndex index_model(ModelBytes model);
/// The same; Error with ErrorKind::weights for a source that is changed meanwhile.
ModelIndex index_model(const Source& model);

/// Every external file that the model names, as it names them.
std::set<std::string> external_locations(const ModelIndex& index);

/// Bytes of a dense tensor; the largest number where that overflows or a dimension is negative, 0 for unknown types.
std::uint64_t dense_bytes(int data_type, const std::vector<std::int64_t>& shape) noexcept;

std::uint64_t total_bytes(const std::vector<Initializer>& initializers) noexcept;

}  // namespace ortmulti
