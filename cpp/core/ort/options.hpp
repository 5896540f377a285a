#pragma once

#include <onnxruntime_cxx_api.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/ort/model_additions.hpp"
#include "core/ort/thread_group.hpp"

namespace ortmulti {

/// onnxruntime's SessionOptions as values; they become ONNX Runtime's object once for each session.
struct SessionOptions {
  int intra_op_num_threads = 0;  ///< 0: by the machine and the number of sessions side by side, see cores.hpp.
  int inter_op_num_threads = 0;
  int graph_optimization_level = ORT_ENABLE_ALL;
  int execution_mode = ORT_SEQUENTIAL;
  int log_severity_level = -1;  ///< -1: default_log_severity().
  int log_verbosity_level = 0;
  bool enable_cpu_mem_arena = true;
  bool enable_mem_pattern = true;
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
};

/// Whether a config entry, one of ONNX Runtime's that are off unless "1", is on.
bool is_on(const SessionOptions& options, const std::string& config_entry);

/// The threads that the session's pools have besides the calling one; 0 where ONNX Runtime is to find their number.
int pool_threads(const SessionOptions& options);

/// One execution provider and its options, as onnxruntime names them.
struct Provider {
  std::string name;  ///< "CUDAExecutionProvider"
  std::map<std::string, std::string> options;
};

/// Makes ONNX Runtime's object, the providers appended in their order.
Ort::SessionOptions to_onnxruntime(const SessionOptions& options, const std::vector<Provider>& providers);

}  // namespace ortmulti
