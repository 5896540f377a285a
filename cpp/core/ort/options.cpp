#include "core/ort/options.hpp"

#include <algorithm>
#include <cstdint>
#include <unordered_map>

#include "core/base/error.hpp"

namespace ortmulti {
namespace {

// Owns a provider's options object of the C API, for which the C++ API has no wrapper.
template <typename Options>
class ProviderOptions {
 public:
  using Create = OrtStatus*(ORT_API_CALL*)(Options**);
  using Update = OrtStatus*(ORT_API_CALL*)(Options*, const char* const*, const char* const*, std::size_t);
  using Release = void(ORT_API_CALL*)(Options*);

  ProviderOptions(Create create, Update update, Release release, const std::map<std::string, std::string>& values)
      : release_(release) {
    Ort::ThrowOnError(create(&options_));
    std::vector<const char*> keys;
    std::vector<const char*> texts;
    for (const auto& [key, text] : values) {
      keys.push_back(key.c_str());
      texts.push_back(text.c_str());
    }
    if (OrtStatus* status = update(options_, keys.data(), texts.data(), keys.size()); status != nullptr) {
      release_(options_);
      Ort::ThrowOnError(status);
    }
  }
  ~ProviderOptions() { release_(options_); }
  ProviderOptions(const ProviderOptions&) = delete;
  ProviderOptions& operator=(const ProviderOptions&) = delete;

  const Options& get() const noexcept { return *options_; }

 private:
  Release release_;
  Options* options_ = nullptr;
};

void append(Ort::SessionOptions& target, const Provider& provider) {
  const OrtApi& api = Ort::GetApi();
  if (provider.name == "CPUExecutionProvider") {
    return;  // ONNX Runtime always appends it last.
  }
  if (provider.name == "CUDAExecutionProvider") {
    const ProviderOptions<OrtCUDAProviderOptionsV2> options(
        api.CreateCUDAProviderOptions, api.UpdateCUDAProviderOptions, api.ReleaseCUDAProviderOptions, provider.options);
    target.AppendExecutionProvider_CUDA_V2(options.get());
    return;
  }
  if (provider.name == "TensorrtExecutionProvider") {
    const ProviderOptions<OrtTensorRTProviderOptionsV2> options(api.CreateTensorRTProviderOptions,
                                                                api.UpdateTensorRTProviderOptions,
                                                                api.ReleaseTensorRTProviderOptions, provider.options);
    target.AppendExecutionProvider_TensorRT_V2(options.get());
    return;
  }
  // The generic call knows the other providers by the name without its suffix, and some in other letters.
  std::string name = provider.name;
  if (name == "AzureExecutionProvider") {
    name = "AZURE";
  } else if (name == "XnnpackExecutionProvider") {
    name = "XNNPACK";
  }
  constexpr std::string_view suffix = "ExecutionProvider";
  if (name.size() > suffix.size() && name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0) {
    name.erase(name.size() - suffix.size());
  }
  const std::unordered_map<std::string, std::string> options(provider.options.begin(), provider.options.end());
  target.AppendExecutionProvider(name, options);
}

}  // namespace

bool is_on(const SessionOptions& options, const std::string& config_entry) {
  const auto entry = options.config_entries.find(config_entry);
  return entry != options.config_entries.end() && entry->second == "1";
}

int pool_threads(const SessionOptions& options) {
  const int inter = options.execution_mode == ORT_PARALLEL ? options.inter_op_num_threads : 1;
  return std::max(0, options.intra_op_num_threads - 1) + std::max(0, inter - 1);
}

Ort::SessionOptions to_onnxruntime(const SessionOptions& options, const std::vector<Provider>& providers) {
  Ort::SessionOptions target;
  target.SetIntraOpNumThreads(options.intra_op_num_threads);
  target.SetInterOpNumThreads(options.inter_op_num_threads);
  target.SetGraphOptimizationLevel(static_cast<GraphOptimizationLevel>(options.graph_optimization_level));
  target.SetExecutionMode(static_cast<ExecutionMode>(options.execution_mode));
  if (options.log_severity_level >= 0) {
    target.SetLogSeverityLevel(options.log_severity_level);
  }
  if (options.log_verbosity_level != 0) {
    // The C++ API has no wrapper for this one.
    Ort::ThrowOnError(Ort::GetApi().SetSessionLogVerbosityLevel(target, options.log_verbosity_level));
  }
  if (!options.logid.empty()) {
    target.SetLogId(options.logid.c_str());
  }
  options.enable_cpu_mem_arena ? target.EnableCpuMemArena() : target.DisableCpuMemArena();
  options.enable_mem_pattern ? target.EnableMemPattern() : target.DisableMemPattern();
  if (options.enable_profiling) {
    target.EnableProfiling(options.profile_file_prefix.c_str());
  }
  if (options.use_deterministic_compute) {
    target.SetDeterministicCompute(true);
  }
  if (!options.use_per_session_threads) {
    target.DisablePerSessionThreads();
  }
  if (!options.optimized_model_filepath.empty()) {
    target.SetOptimizedModelFilePath(options.optimized_model_filepath.c_str());
  }
  for (const auto& [key, value] : options.config_entries) {
    target.AddConfigEntry(key.c_str(), value.c_str());
  }
  // No wrappers for these in the C++ API of 1.21.
  for (const auto& [name, size] : options.free_dimensions_by_name) {
    Ort::ThrowOnError(Ort::GetApi().AddFreeDimensionOverrideByName(target, name.c_str(), size));
  }
  for (const auto& [denotation, size] : options.free_dimensions_by_denotation) {
    Ort::ThrowOnError(Ort::GetApi().AddFreeDimensionOverride(target, denotation.c_str(), size));
  }
  options.additions.add_to(target);
  for (const Provider& provider : providers) {
    try {
      append(target, provider);
    } catch (const Ort::Exception& exception) {
      throw from_onnxruntime(exception, "provider " + provider.name);
    }
  }
  return target;
}

}  // namespace ortmulti
