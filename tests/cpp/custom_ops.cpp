// A library of custom operators for tests, in the domain "ortmulti.tests": Scale multiplies a tensor of float by its
// attribute "factor". ORT_API_MANUAL_INIT is defined where it is compiled, and for tests of delays how many
// milliseconds the creation of a kernel (CREATION_MS), the first run (FIRST_RUN_MS) and the first session's look at
// the operators (FIRST_LOOK_MS) sleep. The first LOST_CAPTURES runs fail as one does whose capture cuDNN lost.
#include <onnxruntime_cxx_api.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#ifndef CREATION_MS
#define CREATION_MS 0
#endif
#ifndef FIRST_RUN_MS
#define FIRST_RUN_MS 0
#endif
#ifndef FIRST_LOOK_MS
#define FIRST_LOOK_MS 0
#endif
#ifndef LOST_CAPTURES
#define LOST_CAPTURES 0
#endif

// The names are ONNX Runtime's.
// NOLINTBEGIN(readability-identifier-naming)

namespace {

std::atomic<bool> first_look_began{false};
std::atomic<bool> first_look_ended{false};
std::atomic<int> looks_beside_the_first{0};
std::atomic<int> captures_to_lose{LOST_CAPTURES};

struct ScaleKernel {
  explicit ScaleKernel(const OrtKernelInfo* info) : factor(Ort::ConstKernelInfo(info).GetAttribute<float>("factor")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(CREATION_MS));
  }

  void Compute(OrtKernelContext* given) {
    std::call_once(first_run, [] { std::this_thread::sleep_for(std::chrono::milliseconds(FIRST_RUN_MS)); });
    if (captures_to_lose.load() > 0) {
      --captures_to_lose;
      throw Ort::Exception("CUDNN_FE failure 11: CUDNN_BACKEND_API_FAILED ; GPU=0", ORT_FAIL);
    }
    const Ort::KernelContext context(given);
    const Ort::ConstValue input = context.GetInput(0);
    const std::vector<std::int64_t> shape = input.GetTensorTypeAndShapeInfo().GetShape();
    Ort::UnownedValue output = context.GetOutput(0, shape);
    const auto* from = input.GetTensorData<float>();
    auto* to = output.GetTensorMutableData<float>();
    for (std::size_t i = 0; i < input.GetTensorTypeAndShapeInfo().GetElementCount(); ++i) {
      to[i] = factor * from[i];
    }
  }

  float factor;
  std::once_flag first_run;
};

struct Scale : Ort::CustomOpBase<Scale, ScaleKernel> {
  void* CreateKernel(const OrtApi& /*api*/, const OrtKernelInfo* info) const { return new ScaleKernel(info); }
  const char* GetName() const { return "Scale"; }
  std::size_t GetInputTypeCount() const { return 1; }
  ONNXTensorElementDataType GetInputType(std::size_t /*index*/) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; }
  std::size_t GetOutputTypeCount() const {
    if (!first_look_began.exchange(true)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(FIRST_LOOK_MS));
      first_look_ended.store(true);
    } else if (!first_look_ended.load()) {
      ++looks_beside_the_first;
    }
    return 1;
  }
  ONNXTensorElementDataType GetOutputType(std::size_t /*index*/) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; }
};

}  // namespace

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                                               const OrtApiBase* base) {
  Ort::InitApi(base->GetApi(21));
  try {
    // Kept for good: sessions use them as long as they live.
    static const Scale scale;
    static const Ort::CustomOpDomain domain = [] {
      Ort::CustomOpDomain made("ortmulti.tests");
      made.Add(&scale);
      return made;
    }();
    Ort::UnownedSessionOptions(options).Add(domain);
  } catch (const Ort::Exception& exception) {
    return Ort::GetApi().CreateStatus(exception.GetOrtErrorCode(), exception.what());
  }
  return nullptr;
}

// How often other sessions looked at the operators while the first one did.
extern "C" __attribute__((visibility("default"))) int looks_beside_first() { return looks_beside_the_first.load(); }

// NOLINTEND(readability-identifier-naming)
