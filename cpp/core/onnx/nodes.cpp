#include "core/onnx/nodes.hpp"

#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "core/base/source.hpp"
#include "core/onnx/wire.hpp"

namespace ortmulti {
namespace {

constexpr std::size_t max_elements = 64;
constexpr int int32 = 6;  // TensorProto.DataType

struct Tensor {
  std::string name;
  int type = 0;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> typed;
  std::optional<std::string> raw;

  explicit Tensor(const WireField& parent) {
    WireMessage message(parent);
    for (WireField field; message.next(field);) {
      if (field.number == 1) {  // TensorProto.dims
        add_integers(field, shape);
      } else if (field.number == 2) {  // data_type
        type = static_cast<int>(field.value);
      } else if (field.number == 5 || field.number == 7) {  // int32_data, int64_data
        if (field.end - field.begin <= max_elements * 10) {
          add_integers(field, typed);
        }
      } else if (field.number == 8 && field.wire == Wire::bytes) {  // name
        name = field.text();
      } else if (field.number == 9 && field.end - field.begin <= max_elements * sizeof(std::int64_t)) {  // raw_data
        raw = field.text();
      }
    }
  }

  // None: it has others, or too many.
  std::optional<std::vector<std::int64_t>> integers() const {
    if ((type != int32 && type != onnx_int64) || typed.size() > max_elements) {
      return std::nullopt;
    }
    if (!raw) {
      return typed.empty() ? std::nullopt : std::optional(typed);
    }
    std::vector<std::int64_t> values;
    const std::size_t each = type == int32 ? sizeof(std::int32_t) : sizeof(std::int64_t);
    for (std::size_t at = 0; at + each <= raw->size(); at += each) {
      std::int64_t value = 0;
      std::memcpy(&value, raw->data() + at, each);
      values.push_back(type == int32 ? static_cast<std::int32_t>(value) : value);
    }
    return values;
  }
};

class Reader {
 public:
  explicit Reader(ModelBytes model) { OnnxWalk<Reader>(*this).model(model); }

  Nodes take() {
    auto& inputs = found_.inputs;  // before IR version 4 all initializers are among them
    std::erase_if(inputs, [this](const std::string& name) { return initializers_.contains(name); });
    return std::move(found_);
  }

  bool enter(OnnxMessage kind, const WireField& field) {
    if (kind == OnnxMessage::initializer) {
      const Tensor tensor(field);
      initializers_.insert(tensor.name);
      add_constant(tensor, "");
      return false;
    }
    if (kind == OnnxMessage::node) {
      found_.nodes.emplace_back();
      domain_.clear();
    } else if (kind == OnnxMessage::attribute) {
      attribute_.clear();
      integers_.clear();
    }
    // Graphs of nodes and functions are not looked into.
    return kind != OnnxMessage::function && (kind != OnnxMessage::graph || found_.nodes.empty());
  }

  void leave(OnnxMessage kind) {
    if (kind == OnnxMessage::attribute && !integers_.empty()) {
      found_.nodes.back().integers[attribute_] = integers_;
    } else if (kind == OnnxMessage::node) {
      Node& node = found_.nodes.back();
      node.type = operator_name(domain_, node.type);
      if (node.type == "Constant" && !node.outputs.empty()) {
        const auto value = node.integers.find("value_int");
        const auto values = node.integers.find("value_ints");
        if (value != node.integers.end() || values != node.integers.end()) {
          found_.constants[node.outputs[0]] = (value != node.integers.end() ? value : values)->second;
          found_.ranks[node.outputs[0]] = value != node.integers.end() ? 0 : 1;
        }
        if (tensor_) {
          add_constant(*tensor_, node.outputs[0]);
        }
      }
      tensor_.reset();
    }
  }

  void field(OnnxMessage parent, const WireField& field) {
    if (parent == OnnxMessage::attribute) {
      if (field.number == 1 && field.wire == Wire::bytes) {  // AttributeProto.name
        attribute_ = field.text();
      } else if (field.number == 3 || field.number == 8) {  // i, ints
        add_integers(field, integers_);
      } else if (field.number == 5 && field.wire == Wire::bytes) {  // t
        tensor_.emplace(field);
      }
    } else if (parent == OnnxMessage::node && field.wire == Wire::bytes) {
      Node& node = found_.nodes.back();
      if (field.number == 1) {  // NodeProto.input
        node.inputs.push_back(field.text());
      } else if (field.number == 2) {  // output
        node.outputs.push_back(field.text());
      } else if (field.number == 3) {  // name
        node.name = field.text();
      } else if (field.number == 4) {  // op_type
        node.type = field.text();
      } else if (field.number == 7) {  // domain
        domain_ = field.text();
      }
    } else if (parent == OnnxMessage::graph && field.wire == Wire::bytes &&
               (field.number == 11 || field.number == 12 || field.number == 13)) {  // input, output, value_info
      add_value(field);
    } else if (parent == OnnxMessage::model && field.number == 8 && field.wire == Wire::bytes) {
      add_opset(field);
    }
  }

 private:
  // Reads an OperatorSetIdProto.
  void add_opset(const WireField& parent) {
    std::string domain;
    std::uint64_t version = 0;
    WireMessage message(parent);
    for (WireField field; message.next(field);) {
      if (field.number == 1 && field.wire == Wire::bytes) {
        domain = field.text();
      } else if (field.number == 2) {
        version = field.value;
      }
    }
    if (domain.empty() || domain == "ai.onnx") {
      found_.opset = version;
    }
  }

  void add_constant(const Tensor& tensor, const std::string& name) {
    const std::string& known_as = name.empty() ? tensor.name : name;
    found_.ranks[known_as] = tensor.shape.size();
    if (auto integers = tensor.integers()) {
      found_.constants[known_as] = *std::move(integers);
    }
  }

  // Reads a ValueInfoProto: a name, and a TypeProto with a tensor's or with another one.
  void add_value(const WireField& parent) {
    std::string name;
    std::optional<std::size_t> rank;
    WireMessage message(parent);
    for (WireField field; message.next(field);) {
      if (field.number == 1 && field.wire == Wire::bytes) {
        name = field.text();
      } else if (field.number == 2 && field.wire == Wire::bytes) {
        for_each(field, 1, [&](const WireField& tensor) {    // TypeProto.tensor_type
          for_each(tensor, 2, [&](const WireField& shape) {  // shape
            rank = 0;
            for_each(shape, 1, [&](const WireField& /*dim*/) { ++*rank; });
          });
        });
      }
    }
    if (parent.number == 11) {
      found_.inputs.push_back(name);
    } else if (parent.number == 12) {
      found_.outputs.push_back(name);
    }
    if (rank) {
      found_.ranks[name] = *rank;
    }
  }

  static void for_each(const WireField& parent, std::uint64_t number, const auto& use) {
    WireMessage message(parent);
    for (WireField field; message.next(field);) {
      if (field.number == number && field.wire == Wire::bytes) {
        use(field);
      }
    }
  }

  Nodes found_;
  std::set<std::string> initializers_;
  std::string domain_;     // of the current node
  std::string attribute_;  // the current one's name
  std::vector<std::int64_t> integers_;
  std::optional<Tensor> tensor_;  // of the current node's attribute
};

}  // namespace

Nodes read_nodes(const Source& model) {
  Nodes nodes = Reader(ModelBytes(model)).take();
  model.check();
  return nodes;
}

}  // namespace ortmulti
