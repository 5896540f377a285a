#include "core/onnx/weight_list.hpp"

#include <algorithm>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/base/text.hpp"
#include "core/onnx/element_types.hpp"

namespace ortmulti {
namespace {

// A type of which ONNX Runtime's API makes tensors over existing memory.
bool has_shareable_type(int data_type) {
  const ElementType* type = find_onnx_type(data_type);
  return type != nullptr && type->over_memory;
}

bool lies_in(const std::string& path, const std::string& folder) {
  return path.starts_with(folder) && (folder == "/" || (path.size() > folder.size() && path[folder.size()] == '/'));
}

}  // namespace

void WeightList::hold_files() {
  for (const auto& source : sources) {
    held.push_back(source->open());
  }
}

std::size_t add_source(WeightList& list, const std::shared_ptr<const Source>& source) {
  const auto at = std::ranges::find(list.sources, source->identity(), &Source::identity);
  const auto index = static_cast<std::size_t>(at - list.sources.begin());
  if (at == list.sources.end()) {
    list.sources.push_back(source);
  }
  return index;
}

std::string tensor_problem(const std::string& name, int data_type, const std::vector<std::int64_t>& shape,
                           std::uint64_t bytes) {
  if (!has_shareable_type(data_type)) {
    return "tensors of its type (" + std::to_string(data_type) + ") cannot be shared";
  }
  if (const std::uint64_t dense = dense_bytes(data_type, shape); bytes != dense) {
    return "it has " + std::to_string(bytes) + " bytes where its type and shape need " + std::to_string(dense);
  }
  if (name.empty() || name.find('\0') != std::string::npos) {
    return "it has no name that could be given to ONNX Runtime";
  }
  return "";
}

SharingRules::SharingRules(const ModelIndex& index) : index_(index) {
  std::set<std::string> seen;
  for (const Initializer& initializer : index.initializers) {
    if (!seen.insert(initializer.name).second) {
      repeated_.insert(initializer.name);
    }
  }
}

std::string SharingRules::problem(const Initializer& initializer) const {
  if (initializer.storage == Storage::typed) {
    return "its values are in a typed field of the model";
  }
  if (std::string problem =
          tensor_problem(initializer.name, initializer.data_type, initializer.shape, initializer.length);
      !problem.empty()) {
    return problem;
  }
  if (repeated_.contains(initializer.name)) {
    return "another initializer of the model has the same name";
  }
  if (index_.constants.contains(initializer.name)) {
    return "a constant of the model has the same name";
  }
  if (initializer.overridable) {
    return "it is an input of its graph too, which a run may override";
  }
  if (initializer.of_function) {
    return "it belongs to a function, where ONNX Runtime renames it";
  }
  return "";
}

ExternalFiles::ExternalFiles(const std::string& folder, const std::string& model_path, SourcesByLocation given)
    : folder_(folder.empty() ? "." : folder), found_(std::move(given)) {
  if (!found_.empty()) {
    return;  // a file lies in no allowed folder then
  }
  const auto allow = [this](const std::string& allowed) {
    if (!allowed.empty()) {
      allowed_.push_back(allowed);
    }
  };
  allow(real_path(folder_));
  if (const std::string real = real_path(model_path); !real.empty()) {
    // Model caches keep links to files of another folder: model and data may both lie there.
    allow(folder_of(real));
  }
}

const std::shared_ptr<const Source>& ExternalFiles::find(const std::string& location, const std::string& owner) {
  if (const auto known = found_.find(location); known != found_.end()) {
    return known->second;
  }
  if (location.empty() || location.find('\0') != std::string::npos) {
    throw Error(ErrorKind::fail, owner + " names no file");
  }
  const std::string data = owner + " in " + in_quotes(location);
  if (location.front() == '/') {
    throw Error(ErrorKind::fail, data + ": the path must be relative to the model's folder " + in_quotes(folder_));
  }
  const std::string path = folder_ + "/" + location;
  std::shared_ptr<const Source> file;
  try {
    file = file_source(path);
  } catch (const Error& error) {
    throw Error(error.kind(), data + ": " + error.what());
  }
  if (std::ranges::none_of(allowed_, [&](const auto& allowed) { return lies_in(file->name(), allowed); })) {
    throw Error(ErrorKind::fail,
                data + ": " + in_quotes(file->name()) + " is outside of the model's folder " + in_quotes(folder_));
  }
  return found_.emplace(location, std::move(file)).first->second;
}

const std::shared_ptr<const Source>& ExternalFiles::find(const std::string& location) {
  return find(location, "external data");
}

const std::shared_ptr<const Source>& ExternalFiles::find(const Initializer& initializer) {
  const std::string owner = "the external data of " + in_quotes(initializer.name);
  const std::shared_ptr<const Source>& file = find(initializer.location, owner);
  if (!file->has(initializer.length, initializer.offset)) {
    throw Error(ErrorKind::fail, owner + " in " + in_quotes(initializer.location) + ": it is " +
                                     std::to_string(initializer.length) + " bytes from " +
                                     std::to_string(initializer.offset) + ", and " + in_quotes(file->name()) + " has " +
                                     std::to_string(file->size()) + " bytes");
  }
  return file;
}

WeightList shareable_weights(const std::string& model_path, std::uint64_t min_bytes) {
  const std::shared_ptr<const Source> model = file_source(model_path);
  const ModelIndex index = index_model(*model);
  const SharingRules rules(index);
  ExternalFiles external(folder_of(model_path), model_path);
  WeightList list;
  list.sources.push_back(model);
  for (const Initializer& initializer : index.initializers) {
    const bool is_external = initializer.storage == Storage::external;
    const std::shared_ptr<const Source>& file = is_external ? external.find(initializer) : model;
    if (initializer.length < min_bytes) {
      continue;
    }
    const std::string problem = rules.problem(initializer);
    if (problem.empty()) {
      list.weights.push_back({initializer.name, initializer.data_type, initializer.shape, add_source(list, file),
                              initializer.offset, initializer.length});
    } else {
      list.left_out.push_back({initializer.name, problem});
    }
  }
  return list;
}

}  // namespace ortmulti
