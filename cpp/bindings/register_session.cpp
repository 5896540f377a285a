#include <pybind11/stl.h>

#include <unordered_map>

#include "bindings/containers.hpp"
#include "bindings/gil.hpp"
#include "bindings/python_session.hpp"
#include "bindings/python_value.hpp"
#include "bindings/registrations.hpp"
#include "bindings/run_options.hpp"
#include "bindings/text.hpp"
#include "core/error.hpp"
#include "core/io_binding.hpp"
#include "core/run_inputs.hpp"

namespace py = pybind11;

namespace ortmulti::bindings {
namespace {

std::string_view text_of(py::handle object, const char* what) {
  if (PyUnicode_Check(object.ptr()) == 0) {
    throw Error(ErrorKind::invalid_type, std::string(what) + " must be a str, not " + class_name(object));
  }
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
  if (text == nullptr) {
    throw py::error_already_set();
  }
  return {text, static_cast<std::size_t>(size)};
}

// What one run needs, converted while the GIL is held.
class Request {
 public:
  Request(const Session& session, const py::object& output_names, const py::dict& feed) {
    const std::size_t count = feed.size();
    inputs_.reserve(count);
    memory_.arrays.reserve(count);
    for (const auto& [key, object] : feed) {
      add(session.input(text_of(key, "the name of an input")), object);
    }
    if (count < session.inputs().size()) {
      session.check_complete(inputs_.names());
    }
    choose_outputs(session, output_names);
  }

  std::vector<Ort::Value> run(Session& session, const Ort::RunOptions& options) const {
    std::vector<Ort::Value> outputs;
    outputs.reserve(outputs_.size());
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      outputs.emplace_back(nullptr);
    }
    // No Python object is touched: arrays and values are held by this request, the session by its Python owner.
    const ReleaseGil nogil;
    session.run(options, inputs_.names().data(), inputs_.values(), inputs_.size(), output_names_.data(), outputs.data(),
                outputs.size());
    return outputs;
  }

  py::object to_python(Ort::Value output, std::size_t index) const {
    return bindings::to_python(std::move(output), outputs_[index]->name, memory_);
  }

 private:
  void add(const ValueInfo& declared, py::handle object) {
    if (std::shared_ptr<const Value> given = value_in(object)) {
      check_input(declared, *given);
      inputs_.add(declared.name.c_str(), *given);
      memory_.values.emplace_back(std::move(given));
    } else if (Ort::Value value = to_value(declared, object, memory_)) {
      inputs_.add(declared.name.c_str(), std::move(value));
    }
  }

  void choose_outputs(const Session& session, const py::object& names) {
    if (!names.is_none()) {
      if (PyUnicode_Check(names.ptr()) != 0 || !py::isinstance<py::sequence>(names)) {
        throw Error(ErrorKind::invalid_type, "output_names must be a sequence of str, or None for all outputs");
      }
      for (const py::handle item : names) {
        outputs_.push_back(&session.output(text_of(item, "the name of an output")));
      }
    }
    if (outputs_.empty()) {
      for (const ValueInfo& output : session.outputs()) {
        outputs_.push_back(&output);
      }
    }
    for (const ValueInfo* output : outputs_) {
      output_names_.push_back(output->name.c_str());
    }
  }

  InputMemory memory_;
  RunInputs inputs_;  // freed before what it lies in
  std::vector<const ValueInfo*> outputs_;
  std::vector<const char*> output_names_;
};

py::dict to_feed(const py::object& feed) {
  if (PyDict_Check(feed.ptr()) != 0) {
    return py::reinterpret_borrow<py::dict>(feed);
  }
  if (!py::isinstance(feed, py::module_::import("collections.abc").attr("Mapping"))) {
    throw Error(ErrorKind::invalid_type,
                "input_feed must be a dict of the inputs' names and values, not " + class_name(feed));
  }
  return py::dict(feed);
}

py::list run(const PythonSession& self, const py::object& output_names, const py::object& input_feed,
             const py::object& run_options) {
  Session& session = *self.session;
  const Ort::RunOptions& options = to_run_options(run_options);
  const py::dict feed = to_feed(input_feed);
  const Request request(session, output_names, feed);
  std::vector<Ort::Value> outputs = request.run(session, options);
  py::list results(outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    results[i] = request.to_python(std::move(outputs[i]), i);
  }
  return results;
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
      .def(
          "end_profiling", [](const PythonSession& self) { return self.session->end_profiling(); },
          py::call_guard<ReleaseGil>())
      .def("profiling_start_time_ns", [](const PythonSession& self) { return self.session->profiling_start_time_ns(); })
      .def(
          "close", [](const PythonSession& self) { self.session->close(); }, py::call_guard<ReleaseGil>())
      .def("closed", [](const PythonSession& self) { return self.session->closed(); });
}

}  // namespace ortmulti::bindings
