#pragma once

#include <onnxruntime_cxx_api.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace ortmulti::bindings {

/// onnxruntime's RunOptions. ONNX Runtime must be open before one is made.
class RunOptions {
 public:
  /// ONNX Runtime's object, valid as long as this one.
  const Ort::RunOptions& get() const noexcept { return options_; }

  int log_severity_level() const noexcept { return log_severity_level_; }
  void set_log_severity_level(int level);
  int log_verbosity_level() const noexcept { return log_verbosity_level_; }
  void set_log_verbosity_level(int level);
  const std::string& logid() const noexcept { return logid_; }
  void set_logid(const std::string& logid);

  /// May be set from another thread, to end the runs that use this object.
  bool terminate() const noexcept { return terminate_.load(); }
  void set_terminate(bool terminate);

  void add_config_entry(const std::string& key, const std::string& value);
  std::string config_entry(const std::string& key) const;

  /// Keeps what the adapter has loaded.
  void add_active_adapter(const pybind11::object& adapter);

 private:
  std::vector<std::shared_ptr<const Ort::LoraAdapter>> adapters_;  // freed after the options that refer to them
  Ort::RunOptions options_;
  int log_severity_level_ = -1;
  int log_verbosity_level_ = 0;
  std::string logid_;
  std::atomic<bool> terminate_{false};
  std::map<std::string, std::string> config_entries_;
};

/// The argument `run_options` of a run: null options for None. Throws Error for what is neither that nor RunOptions.
const Ort::RunOptions& to_run_options(const pybind11::object& options);

}  // namespace ortmulti::bindings
