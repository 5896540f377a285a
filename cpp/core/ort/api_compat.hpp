#pragma once

#include <onnxruntime_cxx_api.h>

#include <cstddef>

namespace ortmulti::ort_api_compat {

/// Functions of the C API that are newer than the one that the core is built for, taken from their places in the table
/// of functions, to which ONNX Runtime only ever appends. Each throws Error with ErrorKind::not_implemented where the
/// opened release does not have it.

using ReleaseCapturedGraph = OrtStatusPtr(ORT_API_CALL*)(OrtSession* session, int annotation_id);
ReleaseCapturedGraph session_release_captured_graph();  ///< 1.27

using MemoryInfoOfValues = OrtStatusPtr(ORT_API_CALL*)(const OrtSession* session, const OrtMemoryInfo** infos,
                                                       std::size_t count);
bool have_memory_info_of_values();
MemoryInfoOfValues session_memory_info_for_inputs();   ///< 1.23
MemoryInfoOfValues session_memory_info_for_outputs();  ///< 1.23

}  // namespace ortmulti::ort_api_compat
