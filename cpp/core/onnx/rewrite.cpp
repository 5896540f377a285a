#include "core/onnx/rewrite.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/base/source.hpp"
#include "core/onnx/index.hpp"
#include "core/onnx/wire.hpp"

namespace ortmulti {
namespace {

constexpr int int64 = 7;  // ONNX's TensorProto.DataType

void append_varint(std::string& out, std::uint64_t value) {
  for (; value > 0x7F; value >>= 7U) {
    out.push_back(static_cast<char>((value & 0x7FU) | 0x80U));
  }
  out.push_back(static_cast<char>(value));
}

std::uint64_t varint_bytes(std::uint64_t value) {
  std::uint64_t bytes = 1;
  for (; value > 0x7F; value >>= 7U) {
    ++bytes;
  }
  return bytes;
}

std::uint64_t bytes_tag(std::uint64_t number) { return number << 3U | static_cast<unsigned>(Wire::bytes); }

void append_bytes(std::string& out, std::uint64_t number, const std::string& content) {
  append_varint(out, bytes_tag(number));
  append_varint(out, content.size());
  out += content;
}

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
    std::string entry;
    append_bytes(entry, 1, key);
    append_bytes(entry, 2, value);
    append_bytes(result, 13, entry);
  }
  append_varint(result, 14U << 3U);  // data_location: a varint
  append_varint(result, 1);          // EXTERNAL
  return result;
}

using Relocations = std::map<std::size_t, const Relocation*>;

// First pass: a message's new size stands before it, and so must be known before it is written.
class Measuring {
 public:
  explicit Measuring(const Relocations& relocations) : relocations_(relocations) {}

  bool enter(OnnxMessage kind, const WireField& field) {
    if (kind != OnnxMessage::initializer) {
      open_.push_back({sizes.size(), field.number});
      sizes.push_back(0);
      return true;
    }
    const auto found = relocations_.find(initializers++);
    if (found == relocations_.end()) {
      this->field(kind, field);
    } else {
      tensors.push_back(relocated(field, *found->second));
      add_message(field.number, tensors.back().size());
    }
    return false;
  }

  void leave(OnnxMessage /*kind*/) {
    const Open closed = open_.back();
    open_.pop_back();
    add_message(closed.number, sizes[closed.size]);
  }

  void field(OnnxMessage /*parent*/, const WireField& field) { add(field.end - field.start); }

  std::vector<std::uint64_t> sizes;  // of the messages, in the order in which they are entered
  std::vector<std::string> tensors;  // the relocated ones
  std::uint64_t total = 0;
  std::size_t initializers = 0;

 private:
  struct Open {
    std::size_t size;
    std::uint64_t number;
  };

  void add(std::uint64_t bytes) { (open_.empty() ? total : sizes[open_.back().size]) += bytes; }
  void add_message(std::uint64_t number, std::uint64_t size) {
    add(varint_bytes(bytes_tag(number)) + varint_bytes(size) + size);
  }

  const Relocations& relocations_;
  std::vector<Open> open_;
};

// Second pass.
class Writing {
 public:
  Writing(const Relocations& relocations, const Measuring& measured) : relocations_(relocations), measured_(measured) {
    out.reserve(measured.total);
  }

  bool enter(OnnxMessage kind, const WireField& field) {
    if (kind != OnnxMessage::initializer) {
      append_varint(out, bytes_tag(field.number));
      append_varint(out, measured_.sizes[entered_++]);
      return true;
    }
    if (relocations_.count(initializers_++) == 0) {
      append_raw(out, field);
    } else {
      append_bytes(out, field.number, measured_.tensors[relocated_++]);
    }
    return false;
  }

  void leave(OnnxMessage /*kind*/) {}
  void field(OnnxMessage /*parent*/, const WireField& field) { append_raw(out, field); }

  std::string out;

 private:
  const Relocations& relocations_;
  const Measuring& measured_;
  std::size_t entered_ = 0;
  std::size_t initializers_ = 0;
  std::size_t relocated_ = 0;
};

// `open` gives the model's bytes anew, for each of the two passes.
template <typename Open>
std::string relocate(const Open& open, const std::vector<Relocation>& relocations) {
  Relocations by_index;
  for (const Relocation& relocation : relocations) {
    if (!by_index.emplace(relocation.initializer, &relocation).second) {
      throw Error(ErrorKind::invalid_argument,
                  "initializer " + std::to_string(relocation.initializer) + " is moved twice");
    }
  }
  ModelBytes bytes = open();
  Measuring measuring(by_index);
  OnnxWalk<Measuring>(measuring).model(bytes);
  if (!by_index.empty() && by_index.rbegin()->first >= measuring.initializers) {
    throw Error(ErrorKind::invalid_argument, "there is no initializer " + std::to_string(by_index.rbegin()->first) +
                                                 ": the model has " + std::to_string(measuring.initializers));
  }
  ModelBytes again = open();
  Writing writing(by_index, measuring);
  OnnxWalk<Writing>(writing).model(again);
  return std::move(writing.out);
}

}  // namespace

std::string relocate_initializers(const unsigned char* model, std::size_t size,
                                  const std::vector<Relocation>& relocations) {
  return relocate([&] { return ModelBytes(model, size); }, relocations);
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
    if (links || initializer.data_type == int64) {
      staying.insert(initializer.name);
    } else {
      relocations.push_back({i, location, initializer.offset, initializer.length});
    }
  }
  std::vector<Weight>& weights = result.weights.weights;
  weights.erase(std::remove_if(weights.begin(), weights.end(),
                               [&](const Weight& weight) { return staying.count(weight.name) != 0; }),
                weights.end());
  if (!relocations.empty()) {
    result.bytes = relocate([&] { return ModelBytes(model); }, relocations);
  }
  model.check();
  return result;
}

}  // namespace ortmulti
