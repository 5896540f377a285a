#include <pybind11/stl.h>

#include <array>
#include <cstddef>
#include <vector>

#include "bindings/gil.hpp"
#include "bindings/python_source.hpp"
#include "bindings/registrations.hpp"
#include "bindings/text.hpp"
#include "core/onnx/index.hpp"
#include "core/onnx/weight_list.hpp"

namespace ortmulti::bindings {

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
      .def_property_readonly("tensor_problem", [](const Initializer& initializer) {
        return tensor_problem(initializer.name, initializer.data_type, initializer.shape, initializer.length);
      });
  py::class_<ModelIndex>(module, "ModelIndex")
      .def_property_readonly("initializers", [](const ModelIndex& index) { return index.initializers; })
      .def_readonly("nodes", &ModelIndex::nodes)
      .def_property_readonly("weight_bytes", [](const ModelIndex& index) { return total_bytes(index.initializers); })
      .def_property_readonly(
          "operators",
          [](const ModelIndex& index) {
            return py::set(py::cast(std::vector<Text>(index.operators.begin(), index.operators.end())));
          })
      .def_readonly("ir_version", &ModelIndex::ir_version)
      .def_property_readonly("opsets",
                             [](const ModelIndex& index) {
                               py::dict opsets;
                               for (const auto& [domain, release] : index.opsets) {
                                 opsets[to_str(domain)] = release;
                               }
                               return opsets;
                             })
      .def_property_readonly("external_locations", [](const ModelIndex& index) {
        const auto locations = external_locations(index);
        return std::vector<py::bytes>(locations.begin(), locations.end());
      });
  module.def(
      "index_model",
      [](const py::object& model) {
        const auto source = to_model_source(model);
        const ReleaseGil nogil;
        return index_model(*source);
      },
      py::arg("model"));
}

}  // namespace ortmulti::bindings
