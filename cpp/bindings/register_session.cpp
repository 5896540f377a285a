#include <pybind11/stl.h>

#include <utility>
#include <vector>

#include "bindings/gil.hpp"
#include "bindings/python_session.hpp"
#include "bindings/registrations.hpp"
#include "bindings/run_options.hpp"
#include "bindings/run_request.hpp"
#include "bindings/text.hpp"
#include "core/create/preload.hpp"

namespace py = pybind11;

namespace ortmulti::bindings {
namespace {

py::list run(const PythonSession& self, const py::object& output_names, const py::object& input_feed,
             const py::object& run_options) {
  Session& session = *self.session;
  const auto options = to_run_options(run_options);
  const RunRequest request(session, output_names, input_feed);
  std::vector<Ort::Value> outputs;
  {
    // No Python object is touched: arrays and values are held by the request, the session by its Python owner.
    const ReleaseGil nogil;
    outputs = request.run(session, *options);
  }
  return request.to_python(std::move(outputs));
}

py::list shape_of(const ValueInfo& info) {
  py::list shape;
  for (std::size_t i = 0; i < info.shape.size(); ++i) {
    if (info.shape[i] >= 0) {
      shape.append(info.shape[i]);
    } else if (info.dimension_names[i].empty()) {
      shape.append(py::none());
    } else {
      shape.append(info.dimension_names[i]);
    }
  }
  return shape;
}

}  // namespace

void register_session(py::module_& module) {
  py::class_<ValueInfo>(module, "NodeArg")
      .def_readonly("name", &ValueInfo::name)
      .def_readonly("type", &ValueInfo::type)
      .def_property_readonly("shape", &shape_of)
      .def("__repr__", [](const ValueInfo& info) {
        return "NodeArg(name='" + info.name + "', type='" + info.type +
               "', shape=" + py::repr(shape_of(info)).cast<std::string>() + ")";
      });

  py::class_<Metadata>(module, "ModelMetadata")
      .def_readonly("producer_name", &Metadata::producer_name)
      .def_readonly("graph_name", &Metadata::graph_name)
      .def_readonly("domain", &Metadata::domain)
      .def_readonly("description", &Metadata::description)
      .def_readonly("graph_description", &Metadata::graph_description)
      .def_readonly("version", &Metadata::version)
      .def_readonly("custom_metadata_map", &Metadata::custom);

  py::class_<PythonSession>(module, "Session")
      .def("run", &run, py::arg("output_names"), py::arg("input_feed"), py::arg("run_options") = py::none())
      .def("inputs", [](const PythonSession& self) { return self.session->inputs(); })
      .def("outputs", [](const PythonSession& self) { return self.session->outputs(); })
      .def("overridable_initializers",
           [](const PythonSession& self) { return self.session->overridable_initializers(); })
      .def("metadata", [](const PythonSession& self) { return self.session->metadata(); })
      .def("device", [](const PythonSession& self) { return to_string(self.session->device()); })
      .def("model", [](const PythonSession& self) { return self.session->model(); })
      .def("providers",
           [](const PythonSession& self) {
             std::vector<std::pair<std::string, std::map<std::string, std::string>>> providers;
             for (const Provider& provider : self.session->providers()) {
               providers.emplace_back(provider.name, provider.options);
             }
             return providers;
           })
      .def("intra_op_num_threads",
           [](const PythonSession& self) { return self.session->options().intra_op_num_threads; })
      .def("inter_op_num_threads",
           [](const PythonSession& self) { return self.session->options().inter_op_num_threads; })
      .def("weight_use",
           [](const PythonSession& self) {
             const WeightUse& use = self.session->weight_use();
             return std::pair(use.used, use.refused);
           })
      .def("end_profiling",
           [](const PythonSession& self) {
             std::string path;
             {
               const ReleaseGil nogil;
               path = self.session->end_profiling();
             }
             return to_str(path);
           })
      .def(
          "set_provider_options",
          [](const PythonSession& self, const std::map<std::string, std::string>& options) {
            self.session->set_provider_options(options);
          },
          py::arg("options"), py::call_guard<ReleaseGil>())
      .def(
          "release_captured_graph",
          [](const PythonSession& self, int annotation_id) { self.session->release_captured_graph(annotation_id); },
          py::arg("annotation_id"), py::call_guard<ReleaseGil>())
      .def(
          "profiling_start_time_ns", [](const PythonSession& self) { return self.session->profiling_start_time_ns(); },
          py::call_guard<ReleaseGil>())
      .def(
          "close",
          [](const PythonSession& self) {
            self.session->close();
            if (self.session->device().is_cuda()) {
              wait_for_preloads(self.session->device().index);  // nothing runs after it
            }
          },
          py::call_guard<ReleaseGil>())
      .def("closed", [](const PythonSession& self) { return self.session->closed(); });
}

}  // namespace ortmulti::bindings
