#include "core/onnx/index.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <utility>

#include "core/base/source.hpp"
#include "core/base/text.hpp"
#include "core/onnx/element_types.hpp"
#include "core/onnx/wire.hpp"

namespace ortmulti {
namespace {

std::uint64_t parse_size(std::string_view text, const char* what) {
  const auto value = whole_number<std::uint64_t>(text);
  if (!value) {
    malformed_model(what);
  }
  return *value;
}

void add_dimensions(const WireField& field, std::vector<std::int64_t>& shape) {
  add_integers(field, shape);
  if (std::ranges::any_of(shape, [](std::int64_t dimension) { return dimension < 0; })) {
    malformed_model("an initializer has a negative dimension");
  }
}

// Where a tensor's external data lies. Offset and length are 0 where the model leaves them out.
struct ExternalData {
  bool used = false;  // data_location is EXTERNAL
  std::string location;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

// Reads one StringStringEntryProto.
void add_external_entry(const WireField& parent, ExternalData& result) {
  std::string key;
  std::string value;
  WireMessage message(parent);
  for (WireField field; message.next(field);) {
    if (field.wire == Wire::bytes && field.number == 1) {
      key = field.text();
    } else if (field.wire == Wire::bytes && field.number == 2) {
      value = field.text();
    }
  }
  if (key == "location") {
    result.location = std::move(value);
  } else if (key == "offset") {
    result.offset = parse_size(value, "the offset of external data is no number");
  } else if (key == "length") {
    result.length = parse_size(value, "the length of external data is no number");
  }
}

// Reads a field of TensorProto that belongs to its external data.
void add_external_field(const WireField& field, ExternalData& result) {
  if (field.number == 13 && field.wire == Wire::bytes) {  // external_data
    add_external_entry(field, result);
  } else if (field.number == 14 && field.wire == Wire::varint) {  // data_location: 1 is EXTERNAL
    // Protobuf keeps 32 bits of an enumeration, and drops an unknown number.
    const auto value = static_cast<std::uint32_t>(field.value);
    result.used = value <= 1 ? value == 1 : result.used;
  }
}

void add_tensor(const WireField& tensor, ExternalData& result) {
  WireMessage message(tensor);
  for (WireField field; message.next(field);) {
    add_external_field(field, result);
  }
}

// A SparseTensorProto is two tensors: its values and their indices.
using SparseData = std::array<ExternalData, 2>;

void add_sparse_tensor(const WireField& tensor, SparseData& result) {
  WireMessage message(tensor);
  for (WireField field; message.next(field);) {
    if (field.wire == Wire::bytes && (field.number == 1 || field.number == 2)) {
      add_tensor(field, result.at(field.number - 1));
    }
  }
}

Initializer read_initializer(const WireField& parent) {
  Initializer result;
  ExternalData external;
  WireMessage message(parent);
  for (WireField field; message.next(field);) {
    const bool bytes = field.wire == Wire::bytes;
    if (field.number == 1) {  // TensorProto.dims, packed or one by one
      add_dimensions(field, result.shape);
    } else if (field.number == 2 && field.wire == Wire::varint) {  // data_type
      result.data_type = static_cast<int>(field.value);
    } else if (field.number == 8 && bytes) {  // name
      result.name = field.text();
    } else if (field.number == 9 && bytes) {  // raw_data
      result.storage = Storage::inline_bytes;
      result.offset = field.begin;
      result.length = field.end - field.begin;
    } else {
      add_external_field(field, external);
    }
  }
  if (external.used) {
    result.storage = Storage::external;
    result.location = std::move(external.location);
    result.offset = external.offset;
    result.length = external.length;  // for ONNX Runtime 0 says nothing
  }
  if (result.storage == Storage::typed || (external.used && result.length == 0)) {
    result.length = dense_bytes(result.data_type, result.shape);
  }
  return result;
}

class Indexer {
 public:
  explicit Indexer(ModelBytes& model) {
    OnnxWalk<Indexer>(*this).model(model);
    // In older models every initializer is an input by rule, and none can be overridden.
    constexpr std::uint64_t first_ir_with_overriding = 4;
    for (Initializer& initializer : index_.initializers) {
      initializer.overridable =
          index_.ir_version >= first_ir_with_overriding && inputs_.contains({initializer.graph, initializer.name});
      initializer.used = used_.contains(initializer.name);
    }
  }

  ModelIndex take() { return std::move(index_); }

  bool enter(OnnxMessage kind, const WireField& field) {
    switch (kind) {
      case OnnxMessage::graph:
        graphs_.push_back(graph_number(field));
        if (!attributes_.empty()) {
          attributes_.back().bytes -= field.end - field.begin;
        }
        break;
      case OnnxMessage::node:
        nodes_.emplace_back();
        break;
      case OnnxMessage::function:
        ++functions_;
        break;
      case OnnxMessage::initializer:
        index_.initializers.push_back(read_initializer(field));
        index_.initializers.back().graph = graphs_.back();
        index_.initializers.back().of_function = functions_ > 0;
        return false;
      case OnnxMessage::attribute:
        attributes_.emplace_back();
        attributes_.back().bytes = field.end - field.begin;
        break;
      case OnnxMessage::model:
      case OnnxMessage::none:
        break;
    }
    return true;
  }

  void leave(OnnxMessage kind) {
    if (kind == OnnxMessage::graph) {
      graphs_.pop_back();
    } else if (kind == OnnxMessage::node) {
      const Node& node = nodes_.back();
      std::string name = operator_name(node.domain, node.type);
      if (name == "Constant") {
        index_.constants.insert(node.outputs.begin(), node.outputs.end());
      }
      ++index_.nodes;
      index_.operators.insert(std::move(name));
      nodes_.pop_back();
    } else if (kind == OnnxMessage::attribute) {
      add_location(attributes_.back().tensor);
      add_locations(attributes_.back().sparse_tensor);
      constexpr std::uint64_t least = 1024;
      index_.attribute_bytes += attributes_.back().bytes >= least ? attributes_.back().bytes : 0;
      attributes_.pop_back();
    } else if (kind == OnnxMessage::function) {
      --functions_;
    }
  }

  void field(OnnxMessage parent, const WireField& field) {
    if (parent == OnnxMessage::model && field.number == 1 && field.wire == Wire::varint) {
      index_.ir_version = field.value;
    }
    if (field.wire != Wire::bytes) {
      return;
    }
    if (parent == OnnxMessage::model && field.number == 8) {
      add_opset(field);
    } else if (parent == OnnxMessage::graph) {
      if (field.number == 11) {  // GraphProto.input: ValueInfoProto.name
        inputs_.emplace(graphs_.back(), text_of(field, 1));
        if (graphs_.back() == 0) {
          index_.inputs.insert(text_of(field, 1));
        }
      } else if (field.number == 12) {  // output
        used_.insert(text_of(field, 1));
      } else if (field.number == 15) {  // sparse_initializer: the name is that of its values
        sparse_initializer(field);
      }
    } else if (parent == OnnxMessage::attribute) {
      attribute_field(field);
    } else if (parent == OnnxMessage::node) {
      if (field.number == 1) {  // NodeProto.input
        used_.insert(field.text());
      } else if (field.number == 2) {  // output
        nodes_.back().outputs.push_back(field.text());
      } else if (field.number == 4) {  // op_type
        nodes_.back().type = field.text();
      } else if (field.number == 7) {  // domain
        nodes_.back().domain = field.text();
      }
    }
  }

 private:
  struct Node {
    std::string type;
    std::string domain;
    std::vector<std::string> outputs;
  };

  // The fields of an attribute that hold one message. Protobuf merges such a field's parts where it is given again.
  struct Attribute {
    std::size_t graph = 0;  // the number; 0 before there is one
    std::uint64_t bytes = 0;
    ExternalData tensor;
    SparseData sparse_tensor;
  };

  // Reads an OperatorSetIdProto.
  void add_opset(const WireField& parent) {
    const std::string domain = text_of(parent, 1);
    WireMessage message(parent);
    for (WireField field; message.next(field);) {
      if (field.number == 2 && field.wire == Wire::varint) {
        index_.opsets[domain.empty() ? "ai.onnx" : domain] = field.value;
      }
    }
  }

  std::size_t graph_number(const WireField& field) {
    if (attributes_.empty()) {
      return 0;  // ModelProto.graph
    }
    if (field.number != 6) {  // of AttributeProto.graphs
      return ++sub_graphs_;
    }
    std::size_t& graph = attributes_.back().graph;  // AttributeProto.g
    return graph = graph == 0 ? ++sub_graphs_ : graph;
  }

  void attribute_field(const WireField& field) {
    if (field.number == 5) {  // AttributeProto.t
      add_tensor(field, attributes_.back().tensor);
    } else if (field.number == 10) {  // tensors
      ExternalData tensor;
      add_tensor(field, tensor);
      add_location(tensor);
    } else if (field.number == 22) {  // sparse_tensor
      add_sparse_tensor(field, attributes_.back().sparse_tensor);
    } else if (field.number == 23) {  // sparse_tensors
      SparseData tensor;
      add_sparse_tensor(field, tensor);
      add_locations(tensor);
    }
  }

  void add_location(const ExternalData& tensor) {
    if (tensor.used) {
      index_.other_locations.insert(tensor.location);
    }
  }

  void add_locations(const SparseData& tensor) {
    std::ranges::for_each(tensor, [this](const ExternalData& each) { add_location(each); });
  }

  void sparse_initializer(const WireField& parent) {
    SparseData tensor;
    add_sparse_tensor(parent, tensor);
    add_locations(tensor);
    WireMessage message(parent);
    for (WireField field; message.next(field);) {
      if (field.wire == Wire::bytes && field.number == 1) {  // SparseTensorProto.values
        index_.constants.emplace(text_of(field, 8));
      }
    }
  }

  std::size_t sub_graphs_ = 0;
  std::size_t functions_ = 0;                             // around the current field
  std::vector<std::size_t> graphs_;                       // the numbers of the graphs around the current field
  std::set<std::pair<std::size_t, std::string>> inputs_;  // with the number of their graph
  std::set<std::string> used_;                            // names of all graphs and functions
  std::vector<Node> nodes_;
  std::vector<Attribute> attributes_;
  ModelIndex index_;
};

}  // namespace

ModelIndex index_model(ModelBytes model) { return Indexer(model).take(); }

ModelIndex index_model(const Source& model) {
  ModelIndex index = index_model(ModelBytes(model));
  model.check();
  return index;
}

std::set<std::string> external_locations(const ModelIndex& index) {
  std::set<std::string> locations = index.other_locations;
  for (const Initializer& initializer : index.initializers) {
    if (initializer.storage == Storage::external) {
      locations.insert(initializer.location);
    }
  }
  return locations;
}

std::uint64_t dense_bytes(int data_type, const std::vector<std::int64_t>& shape) noexcept {
  constexpr std::uint64_t too_many = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t count = 1;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0 || __builtin_mul_overflow(count, static_cast<std::uint64_t>(dimension), &count)) {
      return too_many;
    }
  }
  std::uint64_t bits = 0;
  return __builtin_mul_overflow(count, element_bits(data_type), &bits) || bits > too_many - 7 ? too_many
                                                                                              : (bits + 7) / 8;
}

std::uint64_t total_bytes(const std::vector<Initializer>& initializers) noexcept {
  std::uint64_t total = 0;
  for (const Initializer& initializer : initializers) {
    if (__builtin_add_overflow(total, initializer.length, &total)) {
      return std::numeric_limits<std::uint64_t>::max();
    }
  }
  return total;
}

}  // namespace ortmulti
