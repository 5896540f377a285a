#include "bindings/run_options.hpp"

#include <algorithm>
#include <utility>

#include "bindings/gil.hpp"
#include "bindings/lora_adapter.hpp"
#include "bindings/text.hpp"
#include "core/base/error.hpp"

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

std::shared_ptr<RunOptions::Made> RunOptions::make(Settings settings) {
  auto made = std::make_shared<Made>();
  made->settings = std::move(settings);
  const Settings& given = made->settings;
  checked([&] {
    made->options.SetRunLogSeverityLevel(given.log_severity_level);
    made->options.SetRunLogVerbosityLevel(given.log_verbosity_level);
    made->options.SetRunTag(given.logid.c_str());
    for (const auto& [key, value] : given.config_entries) {
      made->options.AddConfigEntry(key.c_str(), value.c_str());
    }
    for (const auto& adapter : given.adapters) {
      made->options.AddActiveLoraAdapter(*adapter);
    }
  });
  return made;
}

RunOptions::RunOptions() : current_(make({})), all_{current_} {}

std::shared_ptr<const Ort::RunOptions> RunOptions::get() const {
  const auto made = current();
  return {made, &made->options};
}

// ONNX Runtime reads its object during a run without a lock, so a change makes another object.
template <typename Change>
void RunOptions::change(const Change& change) {
  const ReleaseGil nogil;
  const std::lock_guard lock(mutex_);
  Settings settings = current()->settings;
  change(settings);
  const std::shared_ptr<Made> made = make(std::move(settings));
  if (terminate_.load()) {
    checked([&] { made->options.SetTerminate(); });
  }
  all_.erase(std::remove_if(all_.begin(), all_.end(), [](const auto& each) { return each.expired(); }), all_.end());
  all_.push_back(made);
  std::atomic_store(&current_, made);
}

void RunOptions::set_log_severity_level(int level) {
  change([&](Settings& settings) { settings.log_severity_level = level; });
}

void RunOptions::set_log_verbosity_level(int level) {
  change([&](Settings& settings) { settings.log_verbosity_level = level; });
}

void RunOptions::set_logid(const std::string& logid) {
  change([&](Settings& settings) { settings.logid = logid; });
}

void RunOptions::set_terminate(bool terminate) {
  const ReleaseGil nogil;
  const std::lock_guard lock(mutex_);
  terminate_.store(terminate);
  for (const auto& each : all_) {
    if (const auto made = each.lock()) {
      checked([&] { terminate ? made->options.SetTerminate() : made->options.UnsetTerminate(); });
    }
  }
}

void RunOptions::add_config_entry(const std::string& key, const std::string& value) {
  change([&](Settings& settings) { settings.config_entries[key] = value; });
}

std::string RunOptions::config_entry(const std::string& key) const {
  const auto made = current();
  const auto found = made->settings.config_entries.find(key);
  if (found == made->settings.config_entries.end()) {
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
  change([&](Settings& settings) {
    auto& adapters = settings.adapters;
    if (std::find(adapters.begin(), adapters.end(), loaded) != adapters.end()) {
      throw Error(ErrorKind::invalid_argument, "this LoraAdapter is active in these RunOptions already");
    }
    adapters.push_back(loaded);
  });
}

std::shared_ptr<const Ort::RunOptions> to_run_options(const py::object& options) {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): runs may have it up to the end of the process
  static const auto& defaults = *new auto(std::make_shared<const Ort::RunOptions>(nullptr));
  if (options.is_none()) {
    return defaults;
  }
  if (!py::isinstance<RunOptions>(options)) {
    throw Error(ErrorKind::invalid_type, "run_options must be an ortmulti.RunOptions, not " + class_name(options));
  }
  return options.cast<const RunOptions&>().get();
}

}  // namespace ortmulti::bindings
