#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/gil.hpp"
#include "bindings/python_ep_device.hpp"
#include "bindings/python_source.hpp"
#include "bindings/python_value.hpp"
#include "bindings/registrations.hpp"
#include "bindings/run_options.hpp"
#include "bindings/text.hpp"
#include "core/base/error.hpp"
#include "core/create/creation.hpp"
#include "core/ort/options.hpp"

namespace py = pybind11;

namespace ortmulti::bindings {
namespace {

// ONNX Runtime takes no tensor whose memory is its own, such as one that it allocated: this is one over that memory.
ModelAdditions::NamedValue named(const std::string& name, const PythonValue& given) {
  const Value& value = *given.value;
  const auto tensor =
      Value::over(value.data(), value.element_type(), value.shape(), value.device(), freed_without_gil(given.value));
  return {name, {tensor, &tensor->get()}};
}

template <typename Named>
std::vector<std::string> names_of(const std::vector<Named>& values) {
  std::vector<std::string> names;
  names.reserve(values.size());
  for (const auto& [name, value] : values) {
    names.push_back(name);
  }
  return names;
}

void add_provider(SessionOptions& options, const std::vector<PythonEpDevice>& devices,
                  const std::map<std::string, std::string>& values) {
  Provider provider{devices.front().device->provider, values, {}};
  for (const PythonEpDevice& device : devices) {
    provider.devices.push_back(device.device);
  }
  options.providers.push_back(std::move(provider));
}

void add_custom_op_library(SessionOptions& options, const py::str& file) {
  const std::string path = from_path(file);
  std::shared_ptr<const CustomOpLibrary> library;
  {
    const ReleaseGil nogil;  // it is loaded, and runs code of its own
    library = CustomOpLibrary::open(path);
  }
  options.additions.custom_op_libraries.push_back(std::move(library));
}

}  // namespace

void register_options(py::module_& module) {
  // Plain values: ortmulti.SessionOptions checks them and fills this in.
  py::class_<SessionOptions>(module, "SessionOptions")
      .def(py::init<>())
      .def("copy", [](const SessionOptions& options) { return options; })
      .def_readwrite("intra_op_num_threads", &SessionOptions::intra_op_num_threads)
      .def_readwrite("inter_op_num_threads", &SessionOptions::inter_op_num_threads)
      .def_readwrite("graph_optimization_level", &SessionOptions::graph_optimization_level)
      .def_readwrite("execution_mode", &SessionOptions::execution_mode)
      .def_readwrite("log_severity_level", &SessionOptions::log_severity_level)
      .def_readwrite("log_verbosity_level", &SessionOptions::log_verbosity_level)
      .def_readwrite("enable_cpu_mem_arena", &SessionOptions::enable_cpu_mem_arena)
      .def_readwrite("enable_mem_pattern", &SessionOptions::enable_mem_pattern)
      .def_readwrite("enable_profiling", &SessionOptions::enable_profiling)
      .def_readwrite("use_deterministic_compute", &SessionOptions::use_deterministic_compute)
      .def_readwrite("use_per_session_threads", &SessionOptions::use_per_session_threads)
      .def_readwrite("threads", &SessionOptions::threads)
      .def_readwrite("logid", &SessionOptions::logid)
      .def_property(
          "optimized_model_filepath",
          [](const SessionOptions& options) { return to_str(options.optimized_model_filepath); },
          [](SessionOptions& options, const py::str& path) { options.optimized_model_filepath = from_path(path); })
      .def_property(
          "profile_file_prefix", [](const SessionOptions& options) { return to_str(options.profile_file_prefix); },
          [](SessionOptions& options, const py::str& path) { options.profile_file_prefix = from_path(path); })
      .def_readwrite("config_entries", &SessionOptions::config_entries)
      .def_readwrite("free_dimensions_by_name", &SessionOptions::free_dimensions_by_name)
      .def_readwrite("free_dimensions_by_denotation", &SessionOptions::free_dimensions_by_denotation)
      .def("add_initializer",
           [](SessionOptions& options, const std::string& name, const PythonValue& value) {
             options.additions.initializers.push_back(named(name, value));
           })
      .def("add_external_initializer",
           [](SessionOptions& options, const std::string& name, const PythonValue& value) {
             options.additions.external_initializers.push_back(named(name, value));
           })
      .def(
          "add_external_weights",
          [](SessionOptions& options, const WeightList& list) {
            const ReleaseGil nogil;  // nobody changes the list
            add_external_weights(options, list);
          },
          py::arg("list"))
      .def("take_external_weights", &take_external_weights, py::arg("min_bytes"),
           py::arg("staying_names") = std::set<std::string>())
      .def("add_file_in_memory",
           [](SessionOptions& options, const std::string& name, const Source& memory) {
             options.additions.files.push_back({name, memory.map(), memory.size()});
           })
      .def("add_custom_op_library", &add_custom_op_library)
      .def("add_provider", &add_provider)
      .def("clear_providers", [](SessionOptions& options) { options.providers.clear(); })
      .def_property_readonly("providers",
                             [](const SessionOptions& options) {
                               std::vector<std::string> names;
                               names.reserve(options.providers.size());
                               for (const Provider& provider : options.providers) {
                                 names.push_back(provider.name);
                               }
                               return names;
                             })
      .def_property_readonly("initializers",
                             [](const SessionOptions& options) { return names_of(options.additions.initializers); })
      .def_property_readonly(
          "external_initializers",
          [](const SessionOptions& options) { return names_of(options.additions.external_initializers); })
      .def_property_readonly("files_in_memory",
                             [](const SessionOptions& options) {
                               std::vector<std::string> names;
                               names.reserve(options.additions.files.size());
                               for (const auto& file : options.additions.files) {
                                 names.push_back(file.name);
                               }
                               return names;
                             })
      .def_property_readonly("custom_op_libraries", [](const SessionOptions& options) {
        py::list libraries;
        for (const auto& library : options.additions.custom_op_libraries) {
          libraries.append(py::make_tuple(to_str(library->path()), to_python(library->file())));
        }
        return libraries;
      });

  py::class_<RunOptions>(module, "RunOptions")
      .def(py::init<>())
      .def_property("log_severity_level", &RunOptions::log_severity_level, &RunOptions::set_log_severity_level)
      .def_property("log_verbosity_level", &RunOptions::log_verbosity_level, &RunOptions::set_log_verbosity_level)
      .def_property("logid", &RunOptions::logid, &RunOptions::set_logid)
      .def_property("terminate", &RunOptions::terminate, &RunOptions::set_terminate)
      .def("add_run_config_entry", &RunOptions::add_config_entry)
      .def("get_run_config_entry", &RunOptions::config_entry)
      .def("add_active_adapter", &RunOptions::add_active_adapter);
}

}  // namespace ortmulti::bindings
