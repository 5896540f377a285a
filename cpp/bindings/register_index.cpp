#include <pybind11/stl.h>

#include "bindings/gil.hpp"
#include "bindings/registrations.hpp"
#include "bindings/text.hpp"
#include "core/base/source.hpp"
#include "core/onnx/index.hpp"
#include "core/onnx/weight_list.hpp"

namespace py = pybind11;

namespace ortmulti::bindings {

void register_index(py::module_& module) {
  py::class_<Initializer>(module, "Initializer")
      .def_property_readonly("name", [](const Initializer& initializer) { return py::bytes(initializer.name); })
      .def_readonly("data_type", &Initializer::data_type)
      .def_readonly("shape", &Initializer::shape)
      .def_property_readonly("storage",
                             [](const Initializer& initializer) {
                               switch (initializer.storage) {
                                 case Storage::inline_bytes:
                                   return "inline";
                                 case Storage::external:
                                   return "external";
                                 case Storage::typed:
                                   break;
                               }
                               return "typed";
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
      .def_property_readonly("operators",
                             [](const ModelIndex& index) {
                               py::set operators;
                               for (const std::string& name : index.operators) {
                                 operators.add(to_str(name));
                               }
                               return operators;
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
        py::list locations;
        for (const std::string& location : external_locations(index)) {
          locations.append(py::bytes(location));
        }
        return locations;
      });
  module.def(
      "index_model",
      [](const Source& model) {
        const ReleaseGil nogil;
        return index_model(model);
      },
      py::arg("model"));
  module.def(
      "index_model",
      [](const py::str& model) {
        const std::string path = from_path(model);
        const ReleaseGil nogil;
        return index_model(*file_source(path));
      },
      py::arg("model"));
  module.def(
      "index_model",
      [](const py::buffer& model) {
        const py::buffer_info bytes = model.request();
        if (bytes.itemsize != 1 || bytes.ndim != 1 || (bytes.size > 0 && bytes.strides[0] != 1)) {
          throw py::type_error("a model is a block of bytes");
        }
        const ReleaseGil nogil;  // the buffer holds the bytes
        return index_model(static_cast<const unsigned char*>(bytes.ptr), static_cast<std::size_t>(bytes.size));
      },
      py::arg("model"));
}

}  // namespace ortmulti::bindings
