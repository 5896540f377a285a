#pragma once

#include <onnxruntime_cxx_api.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace ortmulti::bindings {

/// onnxruntime's RunOptions. ONNX Runtime must be open before one is made.
class RunOptions {
 public:
  /// ONNX Runtime's object, valid as long as this one. `log_severity` is for options that set none of their own; -1:
  /// none, see Session::run_log_severity().
  const Ort::RunOptions& get(int log_severity = -1) const;

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

 private:
  // Calls `function` with every object of ONNX Runtime's.
  template <typename Function>
  void for_each(const Function& function);

  Ort::RunOptions options_;
  // The same with each severity that was asked for: ONNX Runtime's objects cannot be copied, and this one may be in use
  // with sessions of several severities at once.
  mutable std::array<std::unique_ptr<Ort::RunOptions>, ORT_LOGGING_LEVEL_FATAL + 1> with_severity_;
  mutable std::mutex mutex_;  // for making them while others set what they have in common
  int log_severity_level_ = -1;
  int log_verbosity_level_ = 0;
  std::string logid_;
  std::atomic<bool> terminate_{false};
  std::map<std::string, std::string> config_entries_;
};

}  // namespace ortmulti::bindings
