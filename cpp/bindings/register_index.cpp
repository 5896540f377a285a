#include <pybind11/stl.h>

#include <array>
#include <cstddef>
#include <vector>

#include "bindings/gil.hpp"
#include "bindings/registrations.hpp"
#include "bindings/text.hpp"
#include "core/base/source.hpp"
#include "core/onnx/index.hpp"
#include "core/onnx/weight_list.hpp"
#include "core/onnx/wire.hpp"

namespace py = pybind11;

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
  using Nogil = py::call_guard<ReleaseGil>;
  module.def("index_model", py::overload_cast<const Source&>(&index_model), py::arg("model"), Nogil());
  module.def(
      "index_model", [](const Path& model) { return index_model(*file_source(model)); }, py::arg("model"), Nogil());
  module.def(
      "index_model",
      [](const py::buffer& model) {
        const py::buffer_info bytes = model.request();
        if (bytes.itemsize != 1 || bytes.ndim != 1 || (bytes.size > 0 && bytes.strides[0] != 1)) {
          throw py::type_error("a model is a block of bytes");
        }
        const ReleaseGil nogil;  // the buffer holds the bytes
        return index_model(
            ModelBytes(static_cast<const unsigned char*>(bytes.ptr), static_cast<std::size_t>(bytes.size)));
      },
      py::arg("model"));
}

}  // namespace ortmulti::bindings
