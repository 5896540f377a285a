// A library in the place of an ONNX Runtime that is too old: it has a version and no API that we could ask for.
#include <onnxruntime_c_api.h>

namespace {

const OrtApi* ORT_API_CALL no_api(uint32_t /*version*/) noexcept { return nullptr; }
const char* ORT_API_CALL version() noexcept { return "1.16.3"; }

const OrtApiBase base = {&no_api, &version};

}  // namespace

extern "C" __attribute__((visibility("default"))) const OrtApiBase* ORT_API_CALL OrtGetApiBase() noexcept {
  return &base;
}
