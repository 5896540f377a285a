#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/gil.hpp"
#include "bindings/registrations.hpp"
#include "bindings/run_options.hpp"
#include "bindings/run_request.hpp"
#include "bindings/tensors.hpp"
#include "bindings/text.hpp"
#include "core/create/preload.hpp"

namespace ortmulti::bindings {
namespace {

py::list run(Session& session, const py::object& output_names, const py::object& input_feed,
             const py::object& run_options) {
  const auto options = to_run_options(run_options);
  const RunRequest request(session, output_names, input_feed);
  // No Python object is touched: arrays and values are held by the request, the session by its Python owner.
  auto outputs = without_gil([&] { return request.run(session, *options); });
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
  py::class_<ValueInfo>(module, "NodeArg", "An input, output or initializer that a model declares.")
      .def_readonly("name", &ValueInfo::name, "The name.")
      .def_readonly("type", &ValueInfo::type, "The type in ONNX Runtime's words, such as ``\"tensor(float)\"``.")
      .def_property_readonly("shape", &shape_of, "The dimensions: a number if fixed, a name or None if dynamic.")
      .def_property_readonly(
          "dtype",
          [](const ValueInfo& info) -> py::object {
            return info.is_tensor ? py::object(array_dtype_of(info.element_type)) : py::object(py::none());
          },
          "The dtype of a tensor's arrays, perhaps of ml_dtypes; None for what is no tensor. "
          "onnxruntime has none.")
      .def("__repr__", [](const ValueInfo& info) {
        return "NodeArg(name='" + info.name + "', type='" + info.type +
               "', shape=" + py::repr(shape_of(info)).cast<std::string>() + ")";
      });

  py::class_<Metadata>(module, "ModelMetadata", "The metadata of a model file.")
      .def_readonly("producer_name", &Metadata::producer_name, "The program that made the model.")
      .def_readonly("graph_name", &Metadata::graph_name, "The name of the graph.")
      .def_readonly("domain", &Metadata::domain, "The model's namespace.")
      .def_readonly("description", &Metadata::description, "The model's documentation.")
      .def_readonly("graph_description", &Metadata::graph_description, "The graph's documentation.")
      .def_readonly("version", &Metadata::version, "The model's version.")
      .def_readonly("custom_metadata_map", &Metadata::custom, "The model's own entries.");

  // Freeing one takes time, and waits for runs that need the GIL to end: Python gets them by freed_without_gil().
  py::class_<Session, std::shared_ptr<Session>>(module, "Session")
      .def("run", &run, py::arg("output_names"), py::arg("input_feed"), py::arg("run_options") = py::none())
      .def("inputs", &Session::inputs)
      .def("outputs", &Session::outputs)
      .def("overridable_initializers", &Session::overridable_initializers)
      .def("metadata", &Session::metadata)
      .def("device", &Session::device)
      .def("model", &Session::model)
      .def("providers",
           [](const Session& self) {
             std::vector<std::pair<std::string, std::map<std::string, std::string>>> providers;
             for (const Provider& provider : self.providers()) {
               providers.emplace_back(provider.name, provider.options);
             }
             return providers;
           })
      .def("intra_op_num_threads", [](const Session& self) { return self.options().intra_op_num_threads; })
      .def("inter_op_num_threads", [](const Session& self) { return self.options().inter_op_num_threads; })
      .def("weight_use",
           [](const Session& self) { return std::pair(self.weight_use().used, self.weight_use().refused); })
      .def(
          "end_profiling", [](Session& self) { return Text(self.end_profiling()); }, Nogil())
      .def("set_provider_options", &Session::set_provider_options, py::arg("options"), Nogil())
      .def("release_captured_graph", &Session::release_captured_graph, py::arg("annotation_id"), Nogil())
      .def("nodes_on_cpu", &Session::nodes_on_cpu, Nogil())
      .def("profiling_start_time_ns", &Session::profiling_start_time_ns, Nogil())
      .def(
          "close",
          [](Session& self) {
            self.close();
            if (self.device().is_cuda()) {
              wait_for_preloads(self.device().index);  // nothing runs after it
            }
          },
          Nogil())
      .def("closed", &Session::closed);
}

}  // namespace ortmulti::bindings
