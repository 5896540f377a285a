#include "bindings/run_options.hpp"

#include <utility>

#include "bindings/gil.hpp"
#include "bindings/text.hpp"
#include "core/base/error.hpp"
#include "core/ort/checked.hpp"

namespace ortmulti::bindings {
namespace {

constexpr const char* setting = "setting a run option";

}  // namespace

std::shared_ptr<RunOptions::Made> RunOptions::make(Settings settings) {
  auto made = std::make_shared<Made>();
  made->settings = std::move(settings);
  const Settings& given = made->settings;
  checked(setting, [&] {
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

RunOptions::RunOptions() : current_(make({})), all_{current_.load()} {}

std::shared_ptr<const Ort::RunOptions> RunOptions::get() const {
  const auto made = current();
  return {made, &made->options};
}

// ONNX Runtime reads its object during a run without a lock, so a change makes another object.
void RunOptions::change(const std::function<void(Settings&)>& change) {
  const ReleaseGil nogil;
  const std::lock_guard lock(mutex_);
  Settings settings = this->settings();
  change(settings);
  const std::shared_ptr<Made> made = make(std::move(settings));
  if (terminate_.load()) {
    checked(setting, [&] { made->options.SetTerminate(); });
  }
  std::erase_if(all_, [](const auto& each) { return each.expired(); });
  all_.push_back(made);
  current_.store(made);
}

void RunOptions::set_terminate(bool terminate) {
  const ReleaseGil nogil;
  const std::lock_guard lock(mutex_);
  terminate_.store(terminate);
  for (const auto& each : all_) {
    if (const auto made = each.lock()) {
      checked(setting, [&] { terminate ? made->options.SetTerminate() : made->options.UnsetTerminate(); });
    }
  }
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
