#include "core/onnx/tiny_model.hpp"

#include <set>

#include "core/onnx/wire.hpp"

namespace ortmulti {
namespace {

// Operators of tiny models are the same in this and all later releases of the standard.
constexpr std::uint64_t standard_opset = 17;
constexpr std::uint64_t ir_version = 8;

// A ValueInfoProto; without a shape where that is not known.
std::string value_info(std::string_view name, int element_type, const std::vector<std::int64_t>* shape) {
  std::string tensor = wire_field(1, static_cast<std::uint64_t>(element_type));
  if (shape != nullptr) {
    std::string dimensions;
    for (const std::int64_t size : *shape) {
      dimensions += wire_field(1, wire_field(1, static_cast<std::uint64_t>(size)));
    }
    tensor += wire_field(2, dimensions);
  }
  return wire_field(1, name) + wire_field(2, wire_field(1, tensor));
}

std::string opset(std::string_view domain, std::uint64_t version) {
  return wire_field(1, domain) + wire_field(2, version);
}

}  // namespace

std::string tiny_model(int element_type, const std::vector<TinyNode>& nodes) {
  std::string graph;
  std::string outputs;
  std::set<const TinyValue*> inputs;
  std::set<std::string_view> domains;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const std::string_view full_name = nodes[i].operator_name;
    const std::size_t colon = full_name.rfind(':');
    const bool standard = colon == std::string_view::npos;
    const std::string output = "y" + std::to_string(i);
    std::string node;
    for (const TinyValue* input : nodes[i].inputs) {
      inputs.insert(input);
      node += wire_field(1, input->name);
    }
    node += wire_field(2, output);
    node += wire_field(4, standard ? full_name : full_name.substr(colon + 1));
    if (!standard) {
      domains.insert(full_name.substr(0, colon));
      node += wire_field(7, full_name.substr(0, colon));
    }
    graph += wire_field(1, node);
    outputs += wire_field(12, value_info(output, element_type, nullptr));
  }
  graph += wire_field(2, "tiny");
  for (const TinyValue* input : inputs) {
    graph += wire_field(11, value_info(input->name, element_type, &input->shape));
  }
  graph += outputs;
  std::string model;
  model += wire_field(1, ir_version);
  model += wire_field(7, graph);
  model += wire_field(8, opset("", standard_opset));
  for (const std::string_view domain : domains) {
    model += wire_field(8, opset(domain, 1));
  }
  return model;
}

}  // namespace ortmulti
