#include "bindings/run_options.hpp"

#include <utility>

#include "core/error.hpp"

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

template <typename Function>
void RunOptions::for_each(const Function& function) {
  checked([&] {
    function(options_);
    for (const auto& options : with_severity_) {
      if (options) {
        function(*options);
      }
    }
  });
}

const Ort::RunOptions& RunOptions::get(int log_severity) const {
  if (log_severity < 0 || log_severity_level_ >= 0) {
    return options_;
  }
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Ort::RunOptions>& made = with_severity_.at(static_cast<std::size_t>(log_severity));
  if (!made) {
    checked([&] {
      auto options = std::make_unique<Ort::RunOptions>();
      options->SetRunLogSeverityLevel(log_severity);
      options->SetRunLogVerbosityLevel(log_verbosity_level_);
      options->SetRunTag(logid_.c_str());
      if (terminate_.load()) {
        options->SetTerminate();
      }
      for (const auto& [key, value] : config_entries_) {
        options->AddConfigEntry(key.c_str(), value.c_str());
      }
      made = std::move(options);
    });
  }
  return *made;
}

void RunOptions::set_log_severity_level(int level) {
  checked([&] { options_.SetRunLogSeverityLevel(level); });
  log_severity_level_ = level;
}

void RunOptions::set_log_verbosity_level(int level) {
  const std::lock_guard lock(mutex_);
  for_each([&](Ort::RunOptions& options) { options.SetRunLogVerbosityLevel(level); });
  log_verbosity_level_ = level;
}

void RunOptions::set_logid(const std::string& logid) {
  const std::lock_guard lock(mutex_);
  for_each([&](Ort::RunOptions& options) { options.SetRunTag(logid.c_str()); });
  logid_ = logid;
}

void RunOptions::set_terminate(bool terminate) {
  const std::lock_guard lock(mutex_);
  for_each([&](Ort::RunOptions& options) { terminate ? options.SetTerminate() : options.UnsetTerminate(); });
  terminate_.store(terminate);
}

void RunOptions::add_config_entry(const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  for_each([&](Ort::RunOptions& options) { options.AddConfigEntry(key.c_str(), value.c_str()); });
  config_entries_[key] = value;
}

std::string RunOptions::config_entry(const std::string& key) const {
  const auto found = config_entries_.find(key);
  if (found == config_entries_.end()) {
    throw Error(ErrorKind::invalid_argument, "this RunOptions has no config entry '" + key + "'");
  }
  return found->second;
}

}  // namespace ortmulti::bindings
