#pragma once

#include <onnxruntime_cxx_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

// Opaque; the headers of releases before 1.22 do not have them.
struct OrtEpAssignedNode;
struct OrtEpAssignedSubgraph;
struct OrtEpDevice;
struct OrtHardwareDevice;
struct OrtKeyValuePairs;

namespace ortmulti::ort_api_compat {

/// Whether a release such as "1.31.1" is 1.`minor` or a later one. Texts that are no release are none.
bool is_since(const std::string& version, int minor);

/// Functions of the C API that are newer than the one that the core is built for, taken from their places in the table
/// of functions, to which ONNX Runtime only ever appends. Those that are no std::optional throw Error with
/// ErrorKind::not_implemented where the opened release does not have them.

using ReleaseCapturedGraph = OrtStatusPtr(ORT_API_CALL*)(OrtSession* session, int annotation_id);
ReleaseCapturedGraph session_release_captured_graph();  ///< 1.27

using MemoryInfoOfValues = OrtStatusPtr(ORT_API_CALL*)(const OrtSession* session, const OrtMemoryInfo** infos,
                                                       std::size_t count);
struct PlacementApi {
  MemoryInfoOfValues for_inputs;
  MemoryInfoOfValues for_outputs;
};
/// 1.23. Nothing where the release does not have it.
std::optional<PlacementApi> placement_api();

struct AssignmentApi {
  OrtStatusPtr(ORT_API_CALL* parts)(const OrtSession* session, const OrtEpAssignedSubgraph* const** parts,
                                    std::size_t* count);
  OrtStatusPtr(ORT_API_CALL* provider)(const OrtEpAssignedSubgraph* part, const char** name);
  OrtStatusPtr(ORT_API_CALL* nodes)(const OrtEpAssignedSubgraph* part, const OrtEpAssignedNode* const** nodes,
                                    std::size_t* count);
  OrtStatusPtr(ORT_API_CALL* name)(const OrtEpAssignedNode* node, const char** name);
  OrtStatusPtr(ORT_API_CALL* domain)(const OrtEpAssignedNode* node, const char** domain);  // between the others
  OrtStatusPtr(ORT_API_CALL* operator_type)(const OrtEpAssignedNode* node, const char** type);
};
/// 1.24: which provider has which nodes. Nothing where the release does not have it.
std::optional<AssignmentApi> assignment_api();

/// 1.23: what the allocator tells about itself, such as "InUse". Empty where it, or the release, tells nothing.
std::map<std::string, std::string> allocator_stats(const OrtAllocator& allocator);

/// The functions for plug-ins of execution providers and their devices.
struct PluginApi {
  OrtStatusPtr(ORT_API_CALL* register_library)(OrtEnv* environment, const char* name, const char* path);
  OrtStatusPtr(ORT_API_CALL* unregister_library)(OrtEnv* environment, const char* name);
  OrtStatusPtr(ORT_API_CALL* devices)(const OrtEnv* environment, const OrtEpDevice* const** devices,
                                      std::size_t* count);
  OrtStatusPtr(ORT_API_CALL* append_provider)(OrtSessionOptions* options, OrtEnv* environment,
                                              const OrtEpDevice* const* devices, std::size_t device_count,
                                              const char* const* option_keys, const char* const* option_values,
                                              std::size_t option_count);
  void(ORT_API_CALL* pairs)(const OrtKeyValuePairs* pairs, const char* const** keys, const char* const** values,
                            std::size_t* count);
  int(ORT_API_CALL* hardware_type)(const OrtHardwareDevice* hardware);  // an enumeration there
  std::uint32_t(ORT_API_CALL* hardware_vendor_id)(const OrtHardwareDevice* hardware);
  const char*(ORT_API_CALL* hardware_vendor)(const OrtHardwareDevice* hardware);
  std::uint32_t(ORT_API_CALL* hardware_device_id)(const OrtHardwareDevice* hardware);
  const OrtKeyValuePairs*(ORT_API_CALL* hardware_metadata)(const OrtHardwareDevice* hardware);
  const char*(ORT_API_CALL* provider_name)(const OrtEpDevice* device);
  const char*(ORT_API_CALL* provider_vendor)(const OrtEpDevice* device);
  const OrtKeyValuePairs*(ORT_API_CALL* provider_metadata)(const OrtEpDevice* device);
  const OrtKeyValuePairs*(ORT_API_CALL* provider_options)(const OrtEpDevice* device);
  const OrtHardwareDevice*(ORT_API_CALL* hardware)(const OrtEpDevice* device);
};
bool have_plugin_api(const std::string& version);
PluginApi plugin_api();  ///< 1.22

}  // namespace ortmulti::ort_api_compat
