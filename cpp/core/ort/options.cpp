#include "core/ort/options.hpp"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "core/base/error.hpp"
#include "core/ort/api_compat.hpp"
#include "core/ort/checked.hpp"
#include "core/ort/empty_sequence.hpp"
#include "core/ort/library.hpp"
#include "core/ort/value.hpp"

namespace ortmulti {
namespace {

// Fills a provider's options object of the C API, for which the C++ API has no wrapper.
template <typename Options>
std::unique_ptr<Options, void(ORT_API_CALL*)(Options*)> filled(
    Options* made, void(ORT_API_CALL* release)(Options*),
    OrtStatus*(ORT_API_CALL* update)(Options*, const char* const*, const char* const*, std::size_t),
    const std::map<std::string, std::string>& values) {
  std::unique_ptr<Options, void(ORT_API_CALL*)(Options*)> owned(made, release);
  const OptionTexts texts(values);
  Ort::ThrowOnError(update(made, texts.keys.data(), texts.values.data(), texts.keys.size()));
  return owned;
}

// As a plug-in, the CUDA provider of onnxruntime-gpu 1.31.1 ends the process where an option is not known or has a
// wrong value. So the older call parses them before, where the library has it.
void check_cuda_options(const std::map<std::string, std::string>& options) {
  const OrtApi& api = Ort::GetApi();
  OrtCUDAProviderOptionsV2* made = nullptr;
  if (const Ort::Status status{api.CreateCUDAProviderOptions(&made)}; !status.IsOK()) {
    return;
  }
  filled(made, api.ReleaseCUDAProviderOptions, api.UpdateCUDAProviderOptions, options);
}

void append_for_devices(Ort::SessionOptions& target, const Provider& provider) {
  std::vector<const OrtEpDevice*> devices;
  for (const auto& device : provider.devices) {
    devices.push_back(device->handle);
  }
  if (provider.devices.front()->device.is_cuda()) {
    check_cuda_options(provider.options);
  }
  std::map<std::string, std::string> options = provider.options;
  for (const auto& [key, value] : provider.devices.front()->provider_options) {
    if (const auto given = options.find(key); given != options.end() && given->second == value) {
      options.erase(given);  // ONNX Runtime would log that it replaces what the device brings
    }
  }
  const OptionTexts texts(options);
  Ort::ThrowOnError(ort_api_compat::plugin_api().append_provider(target, OnnxRuntime::get().env(), devices.data(),
                                                                 devices.size(), texts.keys.data(), texts.values.data(),
                                                                 texts.keys.size()));
}

void append(Ort::SessionOptions& target, const Provider& provider) {
  const OrtApi& api = Ort::GetApi();
  if (!provider.devices.empty()) {
    append_for_devices(target, provider);
    return;
  }
  if (provider.name == "CPUExecutionProvider") {
    return;  // ONNX Runtime always appends it last.
  }
  if (provider.name == "CUDAExecutionProvider") {
    OrtCUDAProviderOptionsV2* made = nullptr;
    Ort::ThrowOnError(api.CreateCUDAProviderOptions(&made));
    target.AppendExecutionProvider_CUDA_V2(
        *filled(made, api.ReleaseCUDAProviderOptions, api.UpdateCUDAProviderOptions, provider.options));
    return;
  }
  if (provider.name == "TensorrtExecutionProvider") {
    OrtTensorRTProviderOptionsV2* made = nullptr;
    Ort::ThrowOnError(api.CreateTensorRTProviderOptions(&made));
    target.AppendExecutionProvider_TensorRT_V2(
        *filled(made, api.ReleaseTensorRTProviderOptions, api.UpdateTensorRTProviderOptions, provider.options));
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
  if (name.size() > suffix.size() && name.ends_with(suffix)) {
    name.erase(name.size() - suffix.size());
  }
  const std::unordered_map<std::string, std::string> options(provider.options.begin(), provider.options.end());
  target.AppendExecutionProvider(name, options);
}

}  // namespace

CustomOpLibrary::CustomOpLibrary(const std::string& path) : path_(path) {
  if (path.find('/') != std::string::npos) {
    try {
      file_ = file_source(path);
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the loader says what is wrong
    }
  }
  holder_.RegisterCustomOpsLibrary(path.c_str());
}

std::shared_ptr<const CustomOpLibrary> CustomOpLibrary::open(const std::string& path) {
  return checked("registering the custom operators of '" + path + "'", [&] {
    // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): the constructor is not std::make_shared's to call
    return std::shared_ptr<const CustomOpLibrary>(new CustomOpLibrary(path));
  });
}

void CustomOpLibrary::add_to(Ort::SessionOptions& options) const {
  static std::mutex mutex;
  {
    const std::lock_guard lock(mutex);
    if (!domains_known_) {
      // A session alone does it, whatever its model.
      const std::string model = empty_sequence_model(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
      Ort::SessionOptions small = small_session_options();
      small.RegisterCustomOpsLibrary(path_.c_str());
      const Ort::Session session(OnnxRuntime::get().env(), model.data(), model.size(), small);
      domains_known_ = true;
    }
  }
  options.RegisterCustomOpsLibrary(path_.c_str());
}

void ModelAdditions::add_to(Ort::SessionOptions& options) const {
  for (const auto& library : custom_op_libraries) {
    library->add_to(options);
  }
  for (const auto& [name, value] : initializers) {
    options.AddInitializer(name.c_str(), *value);
  }
  if (!external_initializers.empty()) {
    std::vector<const char*> names;
    std::vector<const OrtValue*> values;
    for (const auto& [name, value] : external_initializers) {
      names.push_back(name.c_str());
      values.push_back(*value);
    }
    // The C++ API's wrapper wants to own the values.
    Ort::ThrowOnError(Ort::GetApi().AddExternalInitializers(options, names.data(), values.data(), names.size()));
  }
  if (!files.empty()) {
    std::vector<std::string> names;
    std::vector<char*> buffers;
    std::vector<std::size_t> sizes;
    for (const FileInMemory& file : files) {
      names.push_back(file.name);
      // ONNX Runtime reads from it alone, whatever its type says.
      // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast)
      buffers.push_back(reinterpret_cast<char*>(const_cast<unsigned char*>(file.bytes.get())));
      sizes.push_back(file.size);
    }
    options.AddExternalInitializersFromFilesInMemory(names, buffers, sizes);
  }
}

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
  // ONNX Runtime keeps a pattern of each set of input shapes for good. On the CPU runs are as fast without; on a GPU
  // they took 3 to 5% longer (H200, ResNet-50 and BERT-base).
  const bool by_rule =
      std::ranges::any_of(providers, [](const Provider& provider) { return provider.name != "CPUExecutionProvider"; });
  options.enable_mem_pattern.value_or(by_rule) ? target.EnableMemPattern() : target.DisableMemPattern();
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
    checked("provider " + provider.name, [&] { append(target, provider); });
  }
  return target;
}

}  // namespace ortmulti
