#include "core/newer_calls.hpp"

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>

#include "core/error.hpp"
#include "core/onnxruntime_library.hpp"

namespace ortmulti::newer_calls {
namespace {

// The last function of the API of 1.21.
constexpr std::size_t last_of_1_21 = offsetof(OrtApi, SetEpDynamicOptions) / sizeof(void*);

constexpr std::size_t release_captured_graph_at = last_of_1_21 + 137;
#if ORT_API_VERSION >= 27
static_assert(release_captured_graph_at == offsetof(OrtApi, SessionReleaseCapturedGraph) / sizeof(void*));
#endif

template <typename Function>
Function function_at(std::size_t place, int minor, const std::string& what) {
  const OnnxRuntime& runtime = OnnxRuntime::get();
  int found_major = 0;
  int found_minor = 0;
  const int read = std::sscanf(runtime.version().c_str(), "%d.%d", &found_major, &found_minor);  // NOLINT(cert-err34-c)
  if (read != 2 || found_major < 1 || (found_major == 1 && found_minor < minor)) {
    throw Error(ErrorKind::not_implemented,
                what + " needs ONNX Runtime 1." + std::to_string(minor) + " or newer; this is " + runtime.version());
  }
  Function function = nullptr;
  std::memcpy(&function, reinterpret_cast<const char*>(&Ort::GetApi()) + place * sizeof(void*), sizeof(function));
  return function;
}

}  // namespace

ReleaseCapturedGraph session_release_captured_graph() {
  return function_at<ReleaseCapturedGraph>(release_captured_graph_at, 27, "releasing a captured graph");
}

}  // namespace ortmulti::newer_calls
