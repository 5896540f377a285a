#include "core/ort/api_compat.hpp"

#include <charconv>
#include <cstring>
#include <memory>

#include "core/base/error.hpp"
#include "core/ort/library.hpp"

namespace ortmulti::ort_api_compat {
namespace {

// The last function of the API of 1.21.
constexpr std::size_t last_of_1_21 = offsetof(OrtApi, SetEpDynamicOptions) / sizeof(void*);

constexpr std::size_t memory_info_at = last_of_1_21 + 96;
#if ORT_API_VERSION >= 23
static_assert(memory_info_at == offsetof(OrtApi, SessionGetMemoryInfoForInputs) / sizeof(void*));
static_assert(memory_info_at + 1 == offsetof(OrtApi, SessionGetMemoryInfoForOutputs) / sizeof(void*));
#endif
constexpr int memory_info_since = 23;

constexpr std::size_t assignment_at = last_of_1_21 + 123;
#if ORT_API_VERSION >= 24
static_assert(assignment_at == offsetof(OrtApi, Session_GetEpGraphAssignmentInfo) / sizeof(void*));
static_assert(assignment_at + 5 == offsetof(OrtApi, EpAssignedNode_GetOperatorType) / sizeof(void*));
#endif
constexpr int assignment_since = 24;

constexpr std::size_t release_captured_graph_at = last_of_1_21 + 137;
#if ORT_API_VERSION >= 27
static_assert(release_captured_graph_at == offsetof(OrtApi, SessionReleaseCapturedGraph) / sizeof(void*));
#endif

constexpr std::size_t get_key_value_pairs_at = last_of_1_21 + 14;
constexpr std::size_t register_library_at = last_of_1_21 + 17;
constexpr std::size_t hardware_type_at = last_of_1_21 + 23;
#if ORT_API_VERSION >= 22
static_assert(get_key_value_pairs_at == offsetof(OrtApi, GetKeyValuePairs) / sizeof(void*));
static_assert(register_library_at == offsetof(OrtApi, RegisterExecutionProviderLibrary) / sizeof(void*));
static_assert(hardware_type_at == offsetof(OrtApi, HardwareDevice_Type) / sizeof(void*));
static_assert(hardware_type_at + 9 == offsetof(OrtApi, EpDevice_Device) / sizeof(void*));
#endif
constexpr int plugins_since = 22;

// What follows in an OrtAllocator of 1.23.
struct AllocatorOf123 {
  OrtAllocator of_1_21;
  OrtStatusPtr(ORT_API_CALL* get_stats)(const OrtAllocator* allocator, OrtKeyValuePairs** pairs);
};
constexpr std::uint32_t stats_since = 23;

// Stores the functions of the table from a place on.
template <typename... Functions>
void take(std::size_t place, Functions&... functions) {
  const auto* const table = reinterpret_cast<const char*>(&Ort::GetApi());
  (std::memcpy(static_cast<void*>(&functions), table + place++ * sizeof(void*), sizeof(functions)), ...);
}

void check_release(int minor, const std::string& what) {
  const std::string& version = OnnxRuntime::get().version();
  if (!is_since(version, minor)) {
    throw Error(ErrorKind::not_implemented,
                what + " needs ONNX Runtime 1." + std::to_string(minor) + " or newer; this is " + version);
  }
}

}  // namespace

bool is_since(const std::string& version, int minor) {
  const char* const end = version.data() + version.size();
  int found_major = 0;
  int found_minor = 0;
  const char* const dot = std::from_chars(version.data(), end, found_major).ptr;
  if (dot != end && *dot == '.') {
    std::from_chars(dot + 1, end, found_minor);
  }
  return found_major > 1 || (found_major == 1 && found_minor >= minor);
}

ReleaseCapturedGraph session_release_captured_graph() {
  check_release(27, "releasing a captured graph");
  ReleaseCapturedGraph function = nullptr;
  take(release_captured_graph_at, function);
  return function;
}

std::optional<PlacementApi> placement_api() {
  if (!is_since(OnnxRuntime::get().version(), memory_info_since)) {
    return std::nullopt;
  }
  PlacementApi api{};
  take(memory_info_at, api.for_inputs, api.for_outputs);
  return api;
}

std::optional<AssignmentApi> assignment_api() {
  if (!is_since(OnnxRuntime::get().version(), assignment_since)) {
    return std::nullopt;
  }
  AssignmentApi api{};
  take(assignment_at, api.parts, api.provider, api.nodes, api.name, api.domain, api.operator_type);
  return api;
}

std::map<std::string, std::string> allocator_stats(const OrtAllocator& allocator) {
  if (allocator.version < stats_since) {
    return {};
  }
  const auto& newer = reinterpret_cast<const AllocatorOf123&>(allocator);
  OrtKeyValuePairs* pairs = nullptr;
  if (newer.get_stats == nullptr) {
    return {};
  }
  if (const Ort::Status status(newer.get_stats(&allocator, &pairs)); !status.IsOK()) {
    return {};
  }
  void(ORT_API_CALL * read)(const OrtKeyValuePairs*, const char* const**, const char* const**, std::size_t*) = nullptr;
  void(ORT_API_CALL * remove)(OrtKeyValuePairs*, const char*) = nullptr;
  void(ORT_API_CALL * release)(OrtKeyValuePairs*) = nullptr;
  take(get_key_value_pairs_at, read, remove, release);
  const std::unique_ptr<OrtKeyValuePairs, decltype(release)> owned(pairs, release);
  const char* const* keys = nullptr;
  const char* const* values = nullptr;
  std::size_t count = 0;
  read(pairs, &keys, &values, &count);
  std::map<std::string, std::string> stats;
  for (std::size_t i = 0; i < count; ++i) {
    stats.emplace(keys[i], values[i]);
  }
  return stats;
}

bool have_plugin_api(const std::string& version) { return is_since(version, plugins_since); }

PluginApi plugin_api() {
  check_release(plugins_since, "a plug-in of execution providers");
  PluginApi api{};
  take(get_key_value_pairs_at, api.pairs);
  take(register_library_at, api.register_library, api.unregister_library, api.devices, api.append_provider);
  take(hardware_type_at, api.hardware_type, api.hardware_vendor_id, api.hardware_vendor, api.hardware_device_id,
       api.hardware_metadata, api.provider_name, api.provider_vendor, api.provider_metadata, api.provider_options,
       api.hardware);
  return api;
}

}  // namespace ortmulti::ort_api_compat
