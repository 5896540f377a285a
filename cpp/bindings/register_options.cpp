#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/gil.hpp"
#include "bindings/registrations.hpp"
#include "bindings/run_options.hpp"
#include "bindings/text.hpp"
#include "core/base/error.hpp"
#include "core/create/external_weights.hpp"
#include "core/ort/checked.hpp"
#include "core/ort/options.hpp"
#include "core/ort/value.hpp"

namespace ortmulti::bindings {
namespace {

// ONNX Runtime takes no tensor whose memory is its own, such as one that it allocated: this is one over that memory.
ModelAdditions::NamedValue named(const std::string& name, const std::shared_ptr<const Value>& given) {
  const auto tensor = Value::over(given->data(), given->element_type(), given->shape(), given->device(), given);
  return {name, {tensor, &tensor->get()}};
}

// Adds a value to those of a member.
auto adder(std::vector<ModelAdditions::NamedValue> ModelAdditions::* values) {
  return [values](SessionOptions& options, const std::string& name, const std::shared_ptr<const Value>& value) {
    (options.additions.*values).push_back(named(name, value));
  };
}

// Gives what a member of each item is.
template <typename Items, typename Name>
auto names_in(Items ModelAdditions::* items, Name name) {
  return [items, name](const SessionOptions& options) {
    std::vector<std::string> names;
    for (const auto& item : options.additions.*items) {
      names.push_back(item.*name);
    }
    return names;
  };
}

void add_provider(SessionOptions& options, const EpDevices& devices, const std::map<std::string, std::string>& values) {
  options.providers.push_back({devices.front()->provider, values, devices});
}

// Reads and sets one of RunOptions' settings.
template <typename Setting>
void define_setting(py::class_<RunOptions>& options, const char* name, Setting RunOptions::Settings::* member) {
  options.def_property(
      name, [member](const RunOptions& self) { return self.settings().*member; },
      [member](RunOptions& self, const Setting& value) {
        self.change([&](RunOptions::Settings& settings) { settings.*member = value; });
      });
}

void add_config_entry(RunOptions& self, const std::string& key, const std::string& value) {
  self.change([&](RunOptions::Settings& settings) { settings.config_entries[key] = value; });
}

std::string config_entry(const RunOptions& self, const std::string& key) {
  const auto entries = self.settings().config_entries;
  const auto found = entries.find(key);
  if (found == entries.end()) {
    throw Error(ErrorKind::invalid_argument, "this RunOptions has no config entry '" + key + "'");
  }
  return found->second;
}

void add_active_adapter(RunOptions& self, const py::object& adapter) {
  if (!py::isinstance<LoraAdapter>(adapter)) {
    throw Error(ErrorKind::invalid_type, "adapter must be an ortmulti.LoraAdapter, not " + class_name(adapter));
  }
  const auto loaded = adapter.cast<const LoraAdapter&>().loaded.load();
  if (!loaded) {
    throw Error(ErrorKind::invalid_argument, "this LoraAdapter has loaded nothing yet: call Load with a file's path");
  }
  self.change([&](RunOptions::Settings& settings) {
    auto& adapters = settings.adapters;
    if (std::ranges::find(adapters, loaded) != adapters.end()) {
      throw Error(ErrorKind::invalid_argument, "this LoraAdapter is active in these RunOptions already");
    }
    adapters.push_back(loaded);
  });
}

void load_adapter(LoraAdapter& self, const Path& path) {
  auto loaded = checked("loading the adapter '" + path.text + "'", [&] {
    return std::make_shared<const Ort::LoraAdapter>(Ort::LoraAdapter::CreateLoraAdapter(path.text, nullptr));
  });
  self.loaded.store(std::move(loaded));
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
          [](SessionOptions& options, const Path& path) { options.optimized_model_filepath = path; })
      .def_property(
          "profile_file_prefix", [](const SessionOptions& options) { return to_str(options.profile_file_prefix); },
          [](SessionOptions& options, const Path& path) { options.profile_file_prefix = path; })
      .def_readwrite("config_entries", &SessionOptions::config_entries)
      .def_readwrite("free_dimensions_by_name", &SessionOptions::free_dimensions_by_name)
      .def_readwrite("free_dimensions_by_denotation", &SessionOptions::free_dimensions_by_denotation)
      .def("add_initializer", adder(&ModelAdditions::initializers), py::arg("name"), py::arg("value"))
      .def("add_external_initializer", adder(&ModelAdditions::external_initializers), py::arg("name"), py::arg("value"))
      .def("add_external_weights", &add_external_weights, py::arg("list"), Nogil())  // nobody changes the list
      .def("take_external_weights", &take_external_weights, py::arg("min_bytes"))
      .def(
          "add_file_in_memory",
          [](SessionOptions& options, const std::string& name, const Source& memory) {
            options.additions.files.push_back({name, memory.map(), memory.size()});
          },
          py::arg("name"), py::arg("memory"))
      .def(
          "add_custom_op_library",
          [](SessionOptions& options, const Path& path) {  // it is loaded, and runs code of its own
            options.additions.custom_op_libraries.push_back(CustomOpLibrary::open(path));
          },
          py::arg("path"), Nogil())
      .def("add_provider", &add_provider, py::arg("devices"), py::arg("options"))
      .def("clear_providers", [](SessionOptions& options) { options.providers.clear(); })
      .def_property_readonly("providers",
                             [](const SessionOptions& self) {
                               std::vector<std::string> names;
                               names.reserve(self.providers.size());
                               for (const Provider& provider : self.providers) {
                                 names.push_back(provider.name);
                               }
                               return names;
                             })
      .def_property_readonly("initializers",
                             names_in(&ModelAdditions::initializers, &ModelAdditions::NamedValue::first))
      .def_property_readonly("external_initializers",
                             names_in(&ModelAdditions::external_initializers, &ModelAdditions::NamedValue::first))
      .def_property_readonly("files_in_memory", names_in(&ModelAdditions::files, &ModelAdditions::FileInMemory::name))
      .def_property_readonly("custom_op_libraries", [](const SessionOptions& options) {
        py::list libraries;
        for (const auto& library : options.additions.custom_op_libraries) {
          libraries.append(py::make_tuple(to_str(library->path()), library->file()));
        }
        return libraries;
      });

  py::class_<LoraAdapter>(module, "LoraAdapter")
      .def(py::init<>())
      .def("_load", &load_adapter, py::arg("path"), Nogil());

  py::class_<RunOptions> run_options(module, "RunOptions");
  run_options.def(py::init<>())
      .def_property("terminate", &RunOptions::terminate, &RunOptions::set_terminate)
      .def("add_run_config_entry", &add_config_entry, py::arg("key"), py::arg("value"))
      .def("get_run_config_entry", &config_entry, py::arg("key"))
      .def("add_active_adapter", &add_active_adapter, py::arg("adapter"));
  define_setting(run_options, "log_severity_level", &RunOptions::Settings::log_severity_level);
  define_setting(run_options, "log_verbosity_level", &RunOptions::Settings::log_verbosity_level);
  define_setting(run_options, "logid", &RunOptions::Settings::logid);
}

}  // namespace ortmulti::bindings
