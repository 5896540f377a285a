#pragma once

#include <onnxruntime_cxx_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/source.hpp"
#include "core/ort/plugins.hpp"
#include "core/ort/thread_group.hpp"

namespace ortmulti {

/// A shared library of custom operators, loaded as long as somebody holds this.
class CustomOpLibrary {
 public:
  /// Loads the library, and has it register its operators once to see that it can. Throws Error.
  static std::shared_ptr<const CustomOpLibrary> open(const std::string& path);

  const std::string& path() const noexcept { return path_; }
  /// Its file when it was opened; null where the path is a name that the system's loader looks for.
  const std::shared_ptr<const Source>& file() const noexcept { return file_; }

  /// Registers the operators with options of a session. The first call also makes their domains known to ONNX Runtime,
  /// with no other library's beside it: it looks a domain up and adds it in two steps, so that of two sessions that
  /// are first to use one at the same time, one fails (up to 1.31 at least). Throws Ort::Exception and Error.
  void add_to(Ort::SessionOptions& options) const;

 private:
  explicit CustomOpLibrary(const std::string& path);

  std::string path_;
  std::shared_ptr<const Source> file_;
  mutable bool domains_known_ = false;  // under the lock of add_to()
  Ort::SessionOptions holder_;          // by ONNX Runtime's rules the library is loaded as long as this is there
};

/// What options add to a model, in memory that ONNX Runtime may use in place: to be held until its session is freed.
struct ModelAdditions {
  using NamedValue = std::pair<std::string, std::shared_ptr<const Ort::Value>>;
  struct FileInMemory {
    std::string name;  ///< As the model's external data names it.
    std::shared_ptr<const unsigned char> bytes;
    std::size_t size = 0;
  };

  /// In the place of initializers of these names, as far as ONNX Runtime's graph still has them. Tensors whose memory
  /// is not ONNX Runtime's own.
  std::vector<NamedValue> initializers;
  std::vector<NamedValue> external_initializers;  ///< In the place of those with external data, before optimizations.
  std::vector<FileInMemory> files;                ///< Read in the place of files of external data.
  std::vector<std::shared_ptr<const CustomOpLibrary>> custom_op_libraries;

  void add_to(Ort::SessionOptions& options) const;
};

/// Options as the C API takes them, over the strings of the map.
struct OptionTexts {
  explicit OptionTexts(const std::map<std::string, std::string>& options) {
    for (const auto& [key, value] : options) {
      keys.push_back(key.c_str());
      values.push_back(value.c_str());
    }
  }

  std::vector<const char*> keys;
  std::vector<const char*> values;
};

/// One execution provider and its options, as onnxruntime names them.
struct Provider {
  std::string name;  ///< "CUDAExecutionProvider"
  std::map<std::string, std::string> options;
  EpDevices devices = {};  ///< Where it runs, if it is a plug-in's; see plugins.hpp.
};

/// onnxruntime's SessionOptions as values; they become ONNX Runtime's object once for each session.
struct SessionOptions {
  int intra_op_num_threads = 0;  ///< 0: by the machine and the number of sessions side by side, see cpu_affinity.hpp.
  int inter_op_num_threads = 0;
  int graph_optimization_level = ORT_ENABLE_ALL;
  int execution_mode = ORT_SEQUENTIAL;
  int log_severity_level = -1;  ///< -1: default_log_severity().
  int log_verbosity_level = 0;
  bool enable_cpu_mem_arena = true;
  std::optional<bool> enable_mem_pattern;  ///< Nothing: where a provider is not the CPU's.
  bool enable_profiling = false;
  bool use_deterministic_compute = false;
  bool use_per_session_threads = true;
  std::optional<ThreadSettings> threads;  ///< How the pools' threads are made; nothing: by ONNX Runtime.
  std::string logid;
  std::string optimized_model_filepath;
  std::string profile_file_prefix = "onnxruntime_profile_";
  std::map<std::string, std::string> config_entries;
  std::vector<std::pair<std::string, std::int64_t>> free_dimensions_by_name;
  std::vector<std::pair<std::string, std::int64_t>> free_dimensions_by_denotation;
  ModelAdditions additions;
  std::vector<Provider> providers;  ///< Before those that a session is created with.
};

/// Whether a config entry, one of ONNX Runtime's that are off unless "1", is on.
bool is_on(const SessionOptions& options, const std::string& config_entry);

/// The threads that the session's pools have besides the calling one; 0 where ONNX Runtime is to find their number.
int pool_threads(const SessionOptions& options);

/// Makes ONNX Runtime's object, the providers appended in their order.
Ort::SessionOptions to_onnxruntime(const SessionOptions& options, const std::vector<Provider>& providers);

}  // namespace ortmulti
