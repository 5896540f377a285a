#include <pybind11/stl.h>

#include <array>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "bindings/gil.hpp"
#include "bindings/python_source.hpp"
#include "bindings/registrations.hpp"
#include "bindings/text.hpp"
#include "core/onnx/index.hpp"
#include "core/onnx/nodes.hpp"
#include "core/onnx/weight_list.hpp"
#include "core/ort/operators.hpp"

namespace ortmulti::bindings {

namespace {

std::vector<Text> to_texts(const std::vector<std::string>& names) { return {names.begin(), names.end()}; }

template <typename Value>
py::dict to_dict(const std::map<std::string, Value>& values) {
  py::dict dict;
  for (const auto& [name, value] : values) {
    dict[to_str(name)] = value;
  }
  return dict;
}

// A function of a model.
void define_reader(py::module_& module, const char* name, const auto& read) {
  module.def(
      name,
      [read](const py::object& model) {
        const auto source = to_model_source(model);
        const ReleaseGil nogil;
        return read(*source);
      },
      py::arg("model"));
}

}  // namespace

void register_index(py::module_& module) {
  py::class_<Initializer>(module, "Initializer")
      .def_property_readonly("name", [](const Initializer& initializer) { return py::bytes(initializer.name); })
      .def_readonly("data_type", &Initializer::data_type)
      .def_readonly("shape", &Initializer::shape)
      .def_property_readonly("storage",
                             [](const Initializer& initializer) {
                               constexpr std::array names = {"inline", "external", "typed"};
                               return names.at(static_cast<std::size_t>(initializer.storage));
                             })
      .def_property_readonly("location", [](const Initializer& initializer) { return py::bytes(initializer.location); })
      .def_readonly("offset", &Initializer::offset)
      .def_readonly("length", &Initializer::length)
      .def_readonly("graph", &Initializer::graph)
      .def_readonly("overridable", &Initializer::overridable)
      .def_readonly("used", &Initializer::used)
      .def_property_readonly("tensor_problem", [](const Initializer& initializer) {
        return tensor_problem(initializer.name, initializer.data_type, initializer.shape, initializer.length);
      });
  py::class_<ModelIndex>(module, "ModelIndex")
      .def_property_readonly("initializers", [](const ModelIndex& index) { return index.initializers; })
      .def_readonly("nodes", &ModelIndex::nodes)
      .def_readonly("attribute_bytes", &ModelIndex::attribute_bytes)
      .def_property_readonly("weight_bytes", [](const ModelIndex& index) { return total_bytes(index.initializers); })
      .def_property_readonly(
          "operators",
          [](const ModelIndex& index) {
            return py::set(py::cast(std::vector<Text>(index.operators.begin(), index.operators.end())));
          })
      .def_property_readonly("stateful_operator",
                             [](const ModelIndex& index) { return find_stateful_operator(index.operators); })
      .def_readonly("ir_version", &ModelIndex::ir_version)
      .def_property_readonly("opsets", [](const ModelIndex& index) { return to_dict(index.opsets); })
      .def_property_readonly("external_locations", [](const ModelIndex& index) {
        const auto locations = external_locations(index);
        return std::vector<py::bytes>(locations.begin(), locations.end());
      });
  define_reader(module, "index_model", [](const Source& model) { return index_model(model); });
  py::class_<Node>(module, "Node")
      .def_property_readonly("name", [](const Node& node) { return to_str(node.name); })
      .def_property_readonly("type", [](const Node& node) { return to_str(node.type); })
      .def_property_readonly("inputs", [](const Node& node) { return to_texts(node.inputs); })
      .def_property_readonly("outputs", [](const Node& node) { return to_texts(node.outputs); })
      .def_property_readonly("integers", [](const Node& node) { return to_dict(node.integers); });
  py::class_<Nodes>(module, "Nodes")
      .def_readonly("nodes", &Nodes::nodes)
      .def_readonly("opset", &Nodes::opset)
      .def_property_readonly("inputs", [](const Nodes& nodes) { return to_texts(nodes.inputs); })
      .def_property_readonly("outputs", [](const Nodes& nodes) { return to_texts(nodes.outputs); })
      .def_property_readonly("ranks", [](const Nodes& nodes) { return to_dict(nodes.ranks); })
      .def_property_readonly("constants", [](const Nodes& nodes) { return to_dict(nodes.constants); });
  define_reader(module, "read_nodes", read_nodes);
}

}  // namespace ortmulti::bindings
