#pragma once

#include <onnxruntime_cxx_api.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <shared_mutex>
#include <string>
#include <vector>

#include "core/device.hpp"
#include "core/onnxruntime_library.hpp"
#include "core/session_options.hpp"
#include "core/timeline.hpp"

namespace ortmulti {

/// A model: a file, or bytes that `owner` keeps alive.
struct ModelSource {
  bool in_memory = false;
  std::string path;  ///< Unless in memory.
  const void* bytes = nullptr;
  std::size_t size = 0;
  std::shared_ptr<const void> owner;

  static ModelSource from_path(std::string path);
  static ModelSource from_bytes(const void* bytes, std::size_t size, std::shared_ptr<const void> owner);

  std::string describe() const;  ///< "'model.onnx'" or "a model of 123 bytes"
};

/// An input or output as the model declares it.
struct ValueInfo {
  std::string name;
  std::string type;  ///< "tensor(float)", "seq(map(int64,tensor(float)))": onnxruntime's spelling.
  bool is_tensor = false;
  ONNXTensorElementDataType element_type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::vector<std::int64_t> shape;           ///< -1 where the model leaves the dimension open.
  std::vector<std::string> dimension_names;  ///< Empty where a dimension has no name; as long as `shape`.
};

struct Metadata {
  std::string producer_name;
  std::string graph_name;
  std::string domain;
  std::string description;
  std::string graph_description;
  std::int64_t version = 0;
  std::map<std::string, std::string> custom;
};

/// One ONNX Runtime session. Everything but the constructor may be called from any thread.
class Session {
 public:
  /// Creates the session in the calling thread, which has its device current afterwards.
  Session(OnnxRuntime& runtime, const ModelSource& model, const SessionOptions& options,
          std::vector<Provider> providers, Timeline* timeline);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const Device& device() const noexcept { return device_; }
  const std::string& model() const noexcept { return model_; }  ///< ModelSource::describe().
  const std::vector<Provider>& providers() const noexcept { return providers_; }
  const SessionOptions& options() const noexcept { return options_; }
  const std::vector<ValueInfo>& inputs() const noexcept { return inputs_; }
  const std::vector<ValueInfo>& outputs() const noexcept { return outputs_; }
  const std::vector<ValueInfo>& overridable_initializers() const noexcept { return overridable_initializers_; }
  const Metadata& metadata() const noexcept { return metadata_; }

  /// Runs the model; `outputs` is filled with new values. Throws Error.
  void run(const Ort::RunOptions& run_options, const char* const* input_names, const Ort::Value* inputs,
           std::size_t input_count, const char* const* output_names, Ort::Value* outputs, std::size_t output_count);

  /// Ends profiling and returns the path of the profile.
  std::string end_profiling();
  std::uint64_t profiling_start_time_ns();

  /// Waits for the runs that are under way, then frees the session and returns its memory to the system. Calling it
  /// again does nothing.
  void close();
  bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }

 private:
  std::shared_lock<std::shared_mutex> lock_for_use();
  bool survives_fork() const noexcept;
  void read_declarations();
  /// As close(), but what was freed may stay in the C library's heaps. Returns whether there was something to free.
  bool free_session();
  friend void close_all_sessions();

  std::string model_;
  Device device_;
  SessionOptions options_;
  std::shared_ptr<const void> model_bytes_;  // where ONNX Runtime uses them in place
  std::vector<Provider> providers_;
  std::vector<ValueInfo> inputs_;
  std::vector<ValueInfo> outputs_;
  std::vector<ValueInfo> overridable_initializers_;
  Metadata metadata_;

  unsigned generation_;
  std::atomic<bool> closed_{false};
  std::shared_mutex mutex_;  // shared while in use, exclusive to close
  std::unique_ptr<Ort::Session> session_;
};

/// The device on which these providers run: that of the first one that names a GPU, else the CPU.
Device device_of(const std::vector<Provider>& providers);

/// Sessions that are to be closed before the CUDA driver shuts down, whoever still holds them.
void register_for_shutdown(const std::shared_ptr<Session>& session);
/// Closes every registered session. Called at interpreter exit, and at the process's as a second line.
void close_all_sessions();

}  // namespace ortmulti
