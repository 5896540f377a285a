#include "bindings/run_options.hpp"

#include <algorithm>

#include "bindings/lora_adapter.hpp"
#include "bindings/text.hpp"
#include "core/error.hpp"

namespace py = pybind11;

namespace ortmulti::bindings {
namespace {

template <typename Function>
void checked(const Function& function) {
  try {
    function();
  } catch (const Ort::Exception& exception) {
    throw from_onnxruntime(exception, "setting a run option");
  }
}

}  // namespace

void RunOptions::set_log_severity_level(int level) {
  checked([&] { options_.SetRunLogSeverityLevel(level); });
  log_severity_level_ = level;
}

void RunOptions::set_log_verbosity_level(int level) {
  checked([&] { options_.SetRunLogVerbosityLevel(level); });
  log_verbosity_level_ = level;
}

void RunOptions::set_logid(const std::string& logid) {
  checked([&] { options_.SetRunTag(logid.c_str()); });
  logid_ = logid;
}

void RunOptions::set_terminate(bool terminate) {
  checked([&] { terminate ? options_.SetTerminate() : options_.UnsetTerminate(); });
  terminate_.store(terminate);
}

void RunOptions::add_config_entry(const std::string& key, const std::string& value) {
  checked([&] { options_.AddConfigEntry(key.c_str(), value.c_str()); });
  config_entries_[key] = value;
}

std::string RunOptions::config_entry(const std::string& key) const {
  const auto found = config_entries_.find(key);
  if (found == config_entries_.end()) {
    throw Error(ErrorKind::invalid_argument, "this RunOptions has no config entry '" + key + "'");
  }
  return found->second;
}

void RunOptions::add_active_adapter(const py::object& adapter) {
  if (!py::isinstance<LoraAdapter>(adapter)) {
    throw Error(ErrorKind::invalid_type, "adapter must be an ortmulti.LoraAdapter, not " +
                                             py::type::of(adapter).attr("__name__").cast<std::string>());
  }
  const auto loaded = std::atomic_load(&adapter.cast<const LoraAdapter&>().loaded);
  if (!loaded) {
    throw Error(ErrorKind::invalid_argument, "this LoraAdapter has loaded nothing yet: call Load with a file's path");
  }
  if (std::find(adapters_.begin(), adapters_.end(), loaded) != adapters_.end()) {
    throw Error(ErrorKind::invalid_argument, "this LoraAdapter is active in these RunOptions already");
  }
  adapters_.push_back(loaded);
  checked([&] { options_.AddActiveLoraAdapter(*loaded); });
}

const Ort::RunOptions& to_run_options(const py::object& options) {
  static const auto* defaults = new Ort::RunOptions(nullptr);  // NOLINT(cppcoreguidelines-owning-memory)
  if (options.is_none()) {
    return *defaults;
  }
  if (!py::isinstance<RunOptions>(options)) {
    throw Error(ErrorKind::invalid_type, "run_options must be an ortmulti.RunOptions, not " + class_name(options));
  }
  return options.cast<const RunOptions&>().get();
}

}  // namespace ortmulti::bindings
