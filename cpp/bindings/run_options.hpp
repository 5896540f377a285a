#pragma once

#include <onnxruntime_cxx_api.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace ortmulti::bindings {

/// onnxruntime's LoraAdapter. Options of runs that use it share what it has loaded, whatever it loads later.
struct LoraAdapter {
  std::atomic<std::shared_ptr<const Ort::LoraAdapter>> loaded;  ///< None before it has loaded a file.
};

/// onnxruntime's RunOptions. ONNX Runtime must be open before one is made. May be changed from any thread, also while
/// runs use it: a run keeps the options with which it was requested. Only `terminate` reaches runs under way.
class RunOptions {
 public:
  struct Settings {
    int log_severity_level = -1;
    int log_verbosity_level = 0;
    std::string logid;
    std::map<std::string, std::string> config_entries;
    std::vector<std::shared_ptr<const Ort::LoraAdapter>> adapters;
  };

  RunOptions();

  /// ONNX Runtime's object for a run. Nothing but `terminate` is ever changed in it.
  std::shared_ptr<const Ort::RunOptions> get() const;

  Settings settings() const { return current()->settings; }
  void change(const std::function<void(Settings&)>& change);

  /// May be set from another thread, to end the runs that use this object.
  bool terminate() const noexcept { return terminate_.load(); }
  void set_terminate(bool terminate);

 private:
  struct Made {
    Settings settings;  // freed after the options, which refer to the adapters
    Ort::RunOptions options;
  };

  static std::shared_ptr<Made> make(Settings settings);
  std::shared_ptr<Made> current() const { return current_.load(); }

  std::atomic<std::shared_ptr<Made>> current_;
  std::atomic<bool> terminate_{false};
  std::mutex mutex_;                      // held by the thread that changes something
  std::vector<std::weak_ptr<Made>> all_;  // the current one, and those that runs still have
};

/// The argument `run_options` of a run: null options for None. Throws Error for what is neither that nor RunOptions.
std::shared_ptr<const Ort::RunOptions> to_run_options(const pybind11::object& options);

}  // namespace ortmulti::bindings
