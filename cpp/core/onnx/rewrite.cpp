#include "core/onnx/rewrite.hpp"

#include <map>
#include <set>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/base/source.hpp"
#include "core/onnx/index.hpp"

namespace ortmulti {
namespace {

void append_raw(std::string& out, const WireField& field) { field.model->append_to(out, field.start, field.end); }

// Fields of TensorProto that say what its values are: the typed ones, raw_data, external_data and data_location.
bool holds_values(std::uint64_t number) {
  return (number >= 4 && number <= 7) || (number >= 9 && number <= 11) || number == 13 || number == 14;
}

std::string relocated(const WireField& tensor, const Relocation& relocation) {
  std::string result;
  WireMessage message(tensor);
  for (WireField field; message.next(field);) {
    if (!holds_values(field.number)) {
      append_raw(result, field);
    }
  }
  const std::pair<const char*, std::string> entries[] = {{"location", relocation.location},
                                                         {"offset", std::to_string(relocation.offset)},
                                                         {"length", std::to_string(relocation.length)}};
  for (const auto& [key, value] : entries) {
    result += wire_field(13, wire_field(1, key) + wire_field(2, value));
  }
  result += wire_field(14, 1);  // data_location: EXTERNAL
  return result;
}

// Writes the model anew. A message's size stands before it, so its content is kept until it ends.
class Rewriter {
 public:
  Rewriter(const std::vector<Relocation>& relocations, const std::set<std::string>& dropped_inputs)
      : dropped_inputs_(dropped_inputs) {
    for (const Relocation& relocation : relocations) {
      relocations_.emplace(relocation.initializer, &relocation);
    }
  }

  bool enter(OnnxMessage kind, const WireField& field) {
    if (kind != OnnxMessage::initializer) {
      open_.push_back({field.number, ""});
      return true;
    }
    const auto found = relocations_.find(initializers_++);
    if (found == relocations_.end()) {
      append_raw(open_.back().content, field);
    } else {
      open_.back().content += wire_field(field.number, relocated(field, *found->second));
    }
    return false;
  }

  void leave(OnnxMessage /*kind*/) {
    const Message ended = std::move(open_.back());
    open_.pop_back();
    open_.back().content.append(wire_header(ended.number, ended.content.size())).append(ended.content);
  }

  void field(OnnxMessage parent, const WireField& field) {
    const bool of_main_graph = parent == OnnxMessage::graph && open_.size() == 2;
    const bool is_input = of_main_graph && field.wire == Wire::bytes && field.number == 11;
    if (!is_input || !dropped_inputs_.contains(text_of(field, 1))) {
      append_raw(open_.back().content, field);
    }
  }

  std::string take() {
    if (!relocations_.empty() && relocations_.rbegin()->first >= initializers_) {
      throw Error(ErrorKind::invalid_argument, "there is no initializer " +
                                                   std::to_string(relocations_.rbegin()->first) + ": the model has " +
                                                   std::to_string(initializers_));
    }
    return std::move(open_.front().content);
  }

 private:
  struct Message {
    std::uint64_t number = 0;
    std::string content;
  };

  std::map<std::size_t, const Relocation*> relocations_;  // by initializer
  const std::set<std::string>& dropped_inputs_;
  std::size_t initializers_ = 0;
  std::vector<Message> open_ = std::vector<Message>(1);  // the model, and what is open within it
};

}  // namespace

std::string relocate_initializers(ModelBytes model, const std::vector<Relocation>& relocations,
                                  const std::set<std::string>& dropped_inputs) {
  Rewriter rewriter(relocations, dropped_inputs);
  OnnxWalk<Rewriter>(rewriter).model(model);
  return rewriter.take();
}

OutsideModel put_weights_outside(const std::string& model_path) {
  OutsideModel result;
  result.weights = shareable_weights(model_path);
  const Source& model = *result.weights.sources.front();
  result.folder = folder_of(model.name());
  const ModelIndex index = index_model(model);
  const bool links = !external_locations(index).empty() && real_path(folder_of(model_path)) != result.folder;
  const std::string location = model.name().substr(model.name().rfind('/') + 1);
  std::vector<Relocation> relocations;
  std::set<std::string> staying;
  for (std::size_t i = 0; i < index.initializers.size(); ++i) {
    const Initializer& initializer = index.initializers[i];
    if (initializer.storage != Storage::inline_bytes || initializer.length < min_shared_bytes) {
      continue;
    }
    if (links || initializer.data_type == onnx_int64) {
      staying.insert(initializer.name);
    } else {
      relocations.push_back({i, location, initializer.offset, initializer.length});
    }
  }
  std::vector<Weight>& weights = result.weights.weights;
  std::erase_if(weights, [&](const Weight& weight) { return staying.contains(weight.name); });
  if (!relocations.empty()) {
    result.bytes = relocate_initializers(ModelBytes(model), relocations);
  }
  model.check();
  return result;
}

std::string put_weights_at(const Source& model, const std::string& location, std::uint64_t min_bytes) {
  const ModelIndex index = index_model(model);
  const SharingRules rules(index);
  std::vector<Relocation> relocations;
  for (std::size_t i = 0; i < index.initializers.size(); ++i) {
    const Initializer& each = index.initializers[i];
    if (each.storage == Storage::inline_bytes && each.length >= min_bytes && each.graph == 0 &&
        each.data_type != onnx_int64 && rules.problem(each).empty()) {
      relocations.push_back({i, location, each.offset, each.length});
    }
  }
  return relocations.empty() ? "" : relocate_initializers(ModelBytes(model), relocations);
}

}  // namespace ortmulti
