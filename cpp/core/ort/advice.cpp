#include "core/ort/advice.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/source.hpp"
#include "core/base/text.hpp"
#include "core/onnx/index.hpp"
#include "core/onnx/wire.hpp"

namespace ortmulti {
namespace {

constexpr std::string_view lfs_pointer = "version https://git-lfs";
constexpr std::string_view zip_archive = "PK\x03\x04";
constexpr std::size_t longest_path = 4096;
constexpr unsigned char ir_version_tag = 0x08;  // a model's first field

// What follows `before` in a text, up to the first of `ends`; nothing without `before`.
std::optional<std::string> part(const std::string& text, std::string_view before, const char* ends) {
  const std::size_t found = text.find(before);
  if (found == std::string::npos) {
    return std::nullopt;
  }
  const std::size_t begin = found + before.size();
  return text.substr(begin, text.find_first_of(ends, begin) - begin);
}

std::string on_unreadable(const ModelSource& model) {
  const std::shared_ptr<const Source> source = model.source();
  ModelBytes bytes(*source);
  std::string head;
  bytes.append_to(head, 0, std::min<std::uint64_t>(bytes.size(), lfs_pointer.size()));
  if (head == lfs_pointer) {
    return "this is a git-lfs pointer, not the model itself: run 'git lfs pull' in its repository";
  }
  if (head.starts_with(zip_archive)) {
    return "this is a zip archive, as PyTorch saves models, not an ONNX model: export it with torch.onnx.export()";
  }
  if (bytes.size() == 0 || bytes.at(0) != ir_version_tag) {
    std::error_code error;
    if (model.bytes && bytes.size() <= longest_path) {
      std::string path;
      bytes.append_to(path, 0, bytes.size());
      if (std::filesystem::exists(path, error)) {
        return "these bytes are the path of a file: give it as a str";
      }
    }
    return "this is not an ONNX model: give the path of an .onnx file, or its bytes";
  }
  try {
    WireMessage message(bytes);
    for (WireField field; message.next(field);) {
    }
  } catch (const Error&) {
    return "the model is incomplete or damaged: its " + std::to_string(bytes.size()) +
           " bytes end within a field. Copy or download it again";
  }
  return "the model is damaged, or is not ONNX: export, copy or download it again";
}

std::string on_external_data(const ModelSource& model) {
  if (model.bytes) {
    return "a model in bytes cannot find its data files: load it by its path, or name their folder in the config entry "
           "'session.model_external_initializers_file_folder_path'";
  }
  const std::filesystem::path folder = std::filesystem::path(model.path).parent_path();
  std::string missing;
  for (const std::string& location : external_locations(index_model(*model.source()))) {
    std::error_code error;
    if (!std::filesystem::exists(folder / location, error)) {
      missing += (missing.empty() ? "" : ", ") + in_quotes(location);
    }
  }
  return missing.empty() ? "" : "the model needs " + missing + " beside it: copy its data files there too";
}

std::string shape_of(const ValueInfo& declared) {
  std::string text;
  for (std::size_t i = 0; i < declared.shape.size(); ++i) {
    const std::string& name = declared.dimension_names[i];
    text += (i == 0 ? "" : ", ") + (declared.shape[i] >= 0 ? std::to_string(declared.shape[i])
                                    : name.empty()         ? "any"
                                                           : name);
  }
  return "(" + text + (declared.shape.size() == 1 ? ",)" : ")");
}

}  // namespace

std::string advice_on_model(const ModelSource& model, const std::string& text, const std::string& version) {
  const auto has = [&](const char* phrase) { return text.find(phrase) != std::string::npos; };
  const std::string runtime = "ONNX Runtime " + version;
  try {
    if (has("rotobuf parsing failed") || has("No graph was found")) {
      return on_unreadable(model);
    }
    // The last one is what old releases say, such as 1.21.
    if (has("External data path") || has("external data") || has("cannot get file size")) {
      return on_external_data(model);
    }
    if (const auto newest = part(text, "max supported IR version: ", " \n")) {
      return "the model has IR version " + part(text, "Unsupported model IR version: ", ", \n").value_or("?") +
             ", and " + runtime + " reads up to " + *newest +
             ": install a newer ONNX Runtime, or save the model with an older ir_version";
    }
    if (const auto opset = part(text, "released onnx opset versions. Opset ", " ")) {
      return "the model has opset " + *opset + ", which is too new for " + runtime +
             ": install a newer ONNX Runtime, or export the model with an older opset";
    }
    auto name = part(text, "No Op registered for ", " ");
    if (!name && has(" is not a registered function/op")) {  // of a domain that is not ONNX's
      name = part(text, "Fatal error: ", "(");
    }
    if (name) {
      return "the model has the operator " + *name + ", which " + runtime +
             " lacks: register the library that has it with SessionOptions.register_custom_ops_library, or install a "
             "newer ONNX Runtime";
    }
    if (const auto known = part(text, "Could not find an implementation for ", "(")) {
      return runtime + " has no kernel here for the operator " + *known +
             " with the model's types: load it on another device, or export it with other types, such as float32";
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the advice matters less than ONNX Runtime's text
  }
  return "";
}

std::string advice_on_inputs(const std::vector<ValueInfo>& inputs, const std::string& text) {
  for (const ValueInfo& input : inputs) {
    const std::string has = "input '" + input.name + "' has ";
    const std::string takes = ", and the model takes " + shape_of(input) + ": ";
    if (const auto rank = part(text, "Invalid rank for input: " + input.name + " Got: ", " ")) {
      const bool one_less = *rank == std::to_string(input.shape.size() - 1);
      return has + *rank + (*rank == "1" ? " dimension" : " dimensions") + takes +
             (one_less ? "add the missing one, for example x[None] for the first" : "reshape the array");
    }
    if (const auto rest = part(text, "Got invalid dimensions for input: " + input.name + " for the following", "")) {
      const std::string index = part(*rest, "index: ", " ").value_or("?");
      return has + "the size " + part(*rest, "Got: ", " ").value_or("?") + " in dimension " + index + takes +
             "give an array of that shape";
    }
  }
  return "";
}

void rethrow_with_unequal_sizes(const Error& error, const std::vector<ValueInfo>& declared, const RunInputs& given) {
  if (error.kind() != ErrorKind::fail && error.kind() != ErrorKind::runtime_exception &&
      error.kind() != ErrorKind::invalid_argument) {
    throw;
  }
  std::map<std::string, std::pair<std::string, std::int64_t>> known;  // by the dimension's name
  for (const ValueInfo& input : declared) {
    const auto name = std::find(given.names().begin(), given.names().end(), input.name);
    if (name == given.names().end()) {
      continue;
    }
    const Ort::Value& value = given.values()[name - given.names().begin()];
    if (!value.HasValue() || !value.IsTensor()) {
      continue;
    }
    const std::vector<std::int64_t> shape = value.GetTensorTypeAndShapeInfo().GetShape();
    for (std::size_t i = 0; i < std::min(shape.size(), input.dimension_names.size()); ++i) {
      const std::string& dimension = input.dimension_names[i];
      if (dimension.empty()) {
        continue;
      }
      const auto& [other, size] = known.emplace(dimension, std::pair(input.name, shape[i])).first->second;
      if (size != shape[i]) {
        throw Error(ErrorKind::invalid_argument,
                    "the inputs " + in_quotes(other) + " and " + in_quotes(input.name) + " have the sizes " +
                        std::to_string(size) + " and " + std::to_string(shape[i]) + " along " + in_quotes(dimension) +
                        ", and the model declares one: give arrays that agree\n" + error.what());
      }
    }
  }
  throw;
}

}  // namespace ortmulti
