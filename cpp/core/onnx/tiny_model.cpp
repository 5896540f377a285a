#include "core/onnx/tiny_model.hpp"

#include <set>

#include "core/onnx/wire.hpp"

namespace ortmulti {
namespace {

// Of the operators that tiny models have: they are the same in all later releases of the standard.
constexpr std::uint64_t standard_opset = 17;
constexpr std::uint64_t ir_version = 8;

void add_varint(std::string& out, std::uint64_t value) {
  for (; value > 0x7F; value >>= 7U) {
    out.push_back(static_cast<char>((value & 0x7FU) | 0x80U));
  }
  out.push_back(static_cast<char>(value));
}

void add(std::string& out, std::uint64_t number, std::uint64_t value) {
  add_varint(out, number << 3U | static_cast<unsigned>(Wire::varint));
  add_varint(out, value);
}

void add(std::string& out, std::uint64_t number, std::string_view bytes) {
  add_varint(out, number << 3U | static_cast<unsigned>(Wire::bytes));
  add_varint(out, bytes.size());
  out += bytes;
}

// A ValueInfoProto; without a shape where that is not known.
std::string value_info(std::string_view name, int element_type, const std::vector<std::int64_t>* shape) {
  std::string tensor;
  add(tensor, 1, static_cast<std::uint64_t>(element_type));
  if (shape != nullptr) {
    std::string dimensions;
    for (const std::int64_t size : *shape) {
      std::string dimension;
      add(dimension, 1, static_cast<std::uint64_t>(size));
      add(dimensions, 1, dimension);
    }
    add(tensor, 2, dimensions);
  }
  std::string type;
  add(type, 1, tensor);
  std::string info;
  add(info, 1, name);
  add(info, 2, type);
  return info;
}

std::string opset(std::string_view domain, std::uint64_t version) {
  std::string import;
  add(import, 1, domain);
  add(import, 2, version);
  return import;
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
      add(node, 1, input->name);
    }
    add(node, 2, output);
    add(node, 4, standard ? full_name : full_name.substr(colon + 1));
    if (!standard) {
      domains.insert(full_name.substr(0, colon));
      add(node, 7, full_name.substr(0, colon));
    }
    add(graph, 1, node);
    add(outputs, 12, value_info(output, element_type, nullptr));
  }
  add(graph, 2, "tiny");
  for (const TinyValue* input : inputs) {
    add(graph, 11, value_info(input->name, element_type, &input->shape));
  }
  graph += outputs;
  std::string model;
  add(model, 1, ir_version);
  add(model, 7, graph);
  add(model, 8, opset("", standard_opset));
  for (const std::string_view domain : domains) {
    add(model, 8, opset(domain, 1));
  }
  return model;
}

}  // namespace ortmulti
