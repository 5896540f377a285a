#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/base/source.hpp"
#include "core/onnx/index.hpp"

namespace ortmulti {

class InputFile;

/// An initializer whose value several sessions may have in common.
struct Weight {
  std::string name;
  int data_type = 0;  ///< ONNX's TensorProto.DataType.
  std::vector<std::int64_t> shape;
  std::size_t source = 0;    ///< Index into WeightList::sources.
  std::uint64_t offset = 0;  ///< In that source.
  std::uint64_t length = 0;  ///< Bytes.
};

/// An initializer that is big enough to be shared and cannot be.
struct LeftOut {
  std::string name;
  std::string reason;
};

struct WeightList {
  /// Where the weights lie. The first is the model's own file, where the list is of a model file.
  std::vector<std::shared_ptr<const Source>> sources;
  std::vector<Weight> weights;
  std::vector<LeftOut> left_out;
  /// Files that stay open with the list, and so can be read after they were moved or removed.
  std::vector<std::shared_ptr<const InputFile>> held{};

  void hold_files();
};

/// Smaller initializers are not worth it.
constexpr std::uint64_t min_shared_bytes = 1024;

/// The weights of a model file that sessions can share: tensors of at least `min_bytes` of a type whose elements have a
/// fixed width, named like no other initializer or constant of the model, that no run can override, as raw_data in the
/// model or in files that ONNX Runtime would open. Throws Error, naming tensor and file, for an external file that is
/// missing, too short or outside of the model's folder.
WeightList shareable_weights(const std::string& model_path, std::uint64_t min_bytes = min_shared_bytes);

/// Why sessions cannot share a tensor of this name and type with these bytes; empty if they can.
std::string tensor_problem(const std::string& name, int data_type, const std::vector<std::int64_t>& shape,
                           std::uint64_t bytes);

/// Why an initializer cannot be shared, whatever its size; empty if it can.
class SharingRules {
 public:
  explicit SharingRules(const ModelIndex& index);
  std::string problem(const Initializer& initializer) const;

 private:
  const ModelIndex& index_;
  std::set<std::string> repeated_;
};

/// Sources by their location in a model.
using SourcesByLocation = std::map<std::string, std::shared_ptr<const Source>>;

/// Finds the files of external data as ONNX Runtime does: relative to the model's folder and within it, or within the
/// folder of the file that a model path leads to as a symbolic link. Or other sources, where these are given.
class ExternalFiles {
 public:
  /// `folder` is that of the model (empty: the working folder), `model_path` the model itself, or empty for one that is
  /// no file. With `given` sources no file is used.
  ExternalFiles(const std::string& folder, const std::string& model_path, SourcesByLocation given = {});

  /// Find the file of an external initializer. Throws Error, naming both, unless the initializer lies in it completely.
  const std::shared_ptr<const Source>& find(const Initializer& initializer);

  /// Find a file by its location in the model. Throws Error, naming it.
  const std::shared_ptr<const Source>& find(const std::string& location);

 private:
  const std::shared_ptr<const Source>& find(const std::string& location, const std::string& owner);

  std::string folder_;
  std::vector<std::string> allowed_;  // folders, absolute and without symbolic links
  SourcesByLocation found_;
};

/// Adds a source to the list unless it is there; its index.
std::size_t add_source(WeightList& list, const std::shared_ptr<const Source>& source);

}  // namespace ortmulti
