#include "core/create/preload.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/fork.hpp"
#include "core/cuda/capture_lock.hpp"
#include "core/cuda/graph.hpp"
#include "core/cuda/memory.hpp"
#include "core/cuda/startup.hpp"
#include "core/onnx/tiny_model.hpp"
#include "core/ort/session.hpp"

namespace ortmulti {
namespace {

// ONNX's TensorProto.DataType.
constexpr int float32 = 1;
constexpr int float16 = 10;
constexpr int bfloat16 = 16;

// For measurements: ORTMULTI_PRELOAD names what is loaded, and "late" if weights come before, "all" if the rest is
// loaded when the sessions are there, "force" if sessions may be created at the same time on any release.
bool wants(std::string_view step) {
  const char* given = std::getenv("ORTMULTI_PRELOAD");  // NOLINT(concurrency-mt-unsafe)
  std::string_view steps = given == nullptr ? "1" : given;
  steps = steps == "1" || steps.empty() ? "blas+kernels+cudnn" : steps == "model" ? "kernels+gemm+conv" : steps;
  while (!steps.empty()) {
    const std::size_t plus = std::min(steps.find('+'), steps.size());
    if (steps.substr(0, plus) == step) {
      return true;
    }
    steps.remove_prefix(std::min(plus + 1, steps.size()));
  }
  return false;
}

// A library that the CUDA provider has opened, by its name without the number of its release; null if it has not.
void* opened_library(const std::string& name, std::initializer_list<int> releases) {
  for (const int release : releases) {
    const std::string full = name + ".so." + std::to_string(release);
    if (void* library = dlopen(full.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD); library != nullptr) {
      return library;
    }
  }
  return nullptr;
}

template <typename Function>
Function function_of(void* library, const char* name) {
  const auto function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) {
    throw Error(ErrorKind::library, std::string("there is no ") + name);
  }
  return function;
}

void check_status(int status, const char* what) {
  if (status != 0) {
    throw Error(ErrorKind::fail, std::string(what) + " failed with status " + std::to_string(status));
  }
}

// What is loaded, or being loaded, on which device.
bool claim(const std::string& what) {
  struct Claims {
    std::mutex mutex;
    std::set<std::string> all;
  };
  auto& claims = process_singleton<Claims>();
  const std::lock_guard lock(claims.mutex);
  return claims.all.insert(what).second;
}

const TinyValue& rows() {
  static const TinyValue value{"x", {8, 64}};
  return value;
}
const TinyValue& matrix() {
  static const TinyValue value{"w", {64, 64}};
  return value;
}
const TinyValue& vector() {
  static const TinyValue value{"v", {64}};
  return value;
}
const TinyValue& image() {
  static const TinyValue value{"i", {1, 8, 16, 16}};
  return value;
}
const TinyValue& filters() {
  static const TinyValue value{"k", {8, 8, 3, 3}};
  return value;
}

// Creates a session of the nodes on the device and runs it once.
std::shared_ptr<const void> run_tiny(OnnxRuntime& runtime, int device, int element_type,
                                     const std::vector<TinyNode>& nodes, bool captures) {
  const auto bytes = std::make_shared<const std::string>(tiny_model(element_type, nodes));
  const std::string id = std::to_string(device);
  SessionOptions options;
  options.intra_op_num_threads = 1;
  options.inter_op_num_threads = 1;
  options.graph_optimization_level = ORT_DISABLE_ALL;
  options.log_severity_level = ORT_LOGGING_LEVEL_FATAL;
  const std::vector<Provider> providers = {
      {"CUDAExecutionProvider",
       {{"device_id", id}, {"arena_extend_strategy", "kSameAsRequested"}, {"cudnn_conv_algo_search", "HEURISTIC"}}}};
  const ModelSource model = ModelSource::from_bytes(bytes->data(), bytes->size(), bytes);
  auto session = std::make_shared<Session>(runtime, model, options, providers, nullptr);
  const auto lock = session->lock_for_use();
  Ort::IoBinding binding = session->make_binding(lock);
  const Ort::MemoryInfo host = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
  const Ort::MemoryInfo gpu("Cuda", OrtDeviceAllocator, device, OrtMemTypeDefault);
  std::vector<std::vector<char>> zeros;
  for (const ValueInfo& input : session->inputs()) {
    std::size_t bytes_of_input = element_type == float32 ? 4 : 2;
    for (const std::int64_t size : input.shape) {
      bytes_of_input *= static_cast<std::size_t>(size);
    }
    zeros.emplace_back(bytes_of_input);
    const Ort::Value value =
        Ort::Value::CreateTensor(host, zeros.back().data(), bytes_of_input, input.shape.data(), input.shape.size(),
                                 static_cast<ONNXTensorElementDataType>(element_type));
    binding.BindInput(input.name.c_str(), value);
  }
  for (const ValueInfo& output : session->outputs()) {
    binding.BindOutput(output.name.c_str(), gpu);
  }
  session->run(lock, Ort::RunOptions{nullptr}, binding, captures ? 1 : 0);
  return session;
}

}  // namespace

Preload::Preload(const ModelIndex& index) : operators_(index.operators), element_type_(float32) {
  std::map<int, std::uint64_t> bytes;
  std::map<std::array<std::int64_t, 2>, std::uint64_t> matrices;
  for (const Initializer& weight : index.initializers) {
    const int type = weight.data_type;
    if (type == float32 || type == float16 || type == bfloat16) {
      bytes[type] += weight.length;
      if (weight.shape.size() == 2 && weight.shape[0] > 1 && weight.shape[1] > 1) {
        matrices[{weight.shape[0], weight.shape[1]}] += weight.length;
      }
    }
  }
  for (const auto& [type, size] : bytes) {
    element_type_ = size > bytes[element_type_] ? type : element_type_;
  }
  std::vector<std::pair<std::uint64_t, std::array<std::int64_t, 2>>> by_bytes;
  by_bytes.reserve(matrices.size());
  for (const auto& [shape, size] : matrices) {
    by_bytes.emplace_back(size, shape);
  }
  std::sort(by_bytes.rbegin(), by_bytes.rend());
  constexpr std::size_t most_shapes = 4;
  constexpr std::int64_t largest = 8192;
  for (const auto& [size, shape] : by_bytes) {
    if (matrices_.size() < most_shapes && shape[0] <= largest && shape[1] <= largest) {
      matrices_.push_back(shape);
    }
  }
  if (matrices_.empty()) {
    matrices_.push_back({64, 64});
  }
}

bool Preload::after_weights() { return wants("late"); }

bool Preload::has(std::initializer_list<const char*> names) const {
  return std::any_of(names.begin(), names.end(), [this](const char* name) { return operators_.count(name) != 0; });
}

void Preload::load(OnnxRuntime& runtime, int device, bool sessions, Timeline* timeline, const std::atomic<bool>& stop,
                   const std::function<void()>& before_freeing) const {
  if (operators_.empty() || wants("0")) {
    return;
  }
  const std::string name = to_string(Device::cuda(device));
  std::vector<std::shared_ptr<const void>> kept;
  const auto step = [&](const char* key, const char* text, bool needed, const auto& work) {
    if (!needed || !wants(key) || (stop.load() && !wants("all")) ||
        !claim(name + key + std::to_string(element_type_))) {
      return;
    }
    const std::int64_t begin_ns = steady_now_ns();
    std::string what = std::string("preload ") + text;
    try {
      const CaptureLock::Shared use(CaptureLock::Use::lasting);
      kept.push_back(work());
    } catch (const std::exception& error) {  // whoever needs it says what is wrong
      what += std::string(" failed: ") + error.what();
    }
    if (timeline != nullptr) {
      timeline->add(what, begin_ns, steady_now_ns(), name);
    }
  };
  sessions = sessions || wants("force");
  const bool products = has({"MatMul", "Gemm", "com.microsoft:FusedMatMul", "com.microsoft:Attention",
                             "com.microsoft:MultiHeadAttention", "com.microsoft:GemmFastGelu"});
  const bool convolutions = has({"Conv", "ConvTranspose", "com.microsoft:FusedConv", "com.microsoft:NhwcConv",
                                 "com.ms.internal.nhwc:Conv", "com.microsoft:NhwcFusedConv"});
  CudaStartup& startup = CudaStartup::instance();
  try {
    startup.make_current(device);
    startup.wait_for_libraries(nullptr);
  } catch (const Error&) {
    return;  // the sessions' creation says so
  }
  step("blas", "cuBLAS", products, [&] { return multiply(device); });
  step("kernels", "kernels", sessions, [&] { return run_kernels(runtime, device); });
  step("gemm", "products", sessions && products, [&] { return run_products(runtime, device); });
  step("cudnn", "cuDNN", convolutions, [&]() -> std::shared_ptr<const void> {
    void* library = opened_library("libcudnn", {9, 8});
    if (library == nullptr) {
      throw Error(ErrorKind::library, "it is not open");
    }
    void* handle = nullptr;
    check_status(function_of<int (*)(void**)>(library, "cudnnCreate")(&handle), "cudnnCreate");
    return {handle, function_of<int (*)(void*)>(library, "cudnnDestroy")};
  });
  step("conv", "convolutions", sessions && convolutions, [&] { return run_convolution(runtime, device); });
  if (!kept.empty()) {
    if (before_freeing) {
      before_freeing();
    }
    const ScopedSpan span(timeline, "free what was preloaded with", name);
    const CaptureLock::Shared use(CaptureLock::Use::lasting);
    kept.clear();
  }
}

std::shared_ptr<const void> Preload::multiply(int device) const {
  void* library = opened_library("libcublas", {13, 12, 11});
  if (library == nullptr) {
    throw Error(ErrorKind::library, "it is not open");
  }
  const auto create = function_of<int (*)(void**)>(library, "cublasCreate_v2");
  const auto destroy = function_of<int (*)(void*)>(library, "cublasDestroy_v2");
  const auto set_stream = function_of<int (*)(void*, CUstream)>(library, "cublasSetStream_v2");
  const auto set_math = function_of<int (*)(void*, int)>(library, "cublasSetMathMode");
  const auto multiply =
      function_of<int (*)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int,
                          const void*, void*, int, int, int, int)>(library, "cublasGemmEx");
  constexpr std::int64_t rows = 128;
  std::int64_t most = 0;
  for (const auto& [inner, columns] : matrices_) {
    most = std::max({most, inner * columns, rows * inner, rows * columns});
  }
  CudaStartup& startup = CudaStartup::instance();
  const std::size_t element_bytes = element_type_ == float32 ? 4 : 2;
  // Freed in the order of a struct's members, the last one first.
  struct Used {
    CudaMemory memory;
    CudaStream stream;
    std::unique_ptr<void, int (*)(void*)> handle;
    Used(CudaStartup& startup, int device, std::size_t bytes, int (*destroy)(void*))
        : memory(startup, device, bytes, "a product's matrices"), stream(startup, device), handle(nullptr, destroy) {}
  };
  const auto used = std::make_shared<Used>(startup, device, static_cast<std::size_t>(most) * element_bytes, destroy);
  void* handle = nullptr;
  check_status(create(&handle), "cublasCreate");
  used->handle.reset(handle);
  check_status(set_stream(handle, used->stream.get()), "cublasSetStream");
  if (element_type_ == float32) {
    check_status(set_math(handle, 3), "cublasSetMathMode");  // with TensorFloat-32, as the provider's default
  }
  // Types as cudaDataType, the sum as cublasComputeType_t, and the algorithm that cuBLAS chooses.
  const int type = element_type_ == float32 ? 0 : element_type_ == float16 ? 2 : 14;
  constexpr int in_float32 = 68;
  constexpr int by_default = -1;
  const float one = 1;
  const float zero = 0;
  auto* const address = reinterpret_cast<void*>(used->memory.address());  // NOLINT(performance-no-int-to-ptr)
  for (const auto& [inner, columns] : matrices_) {
    const int k = static_cast<int>(inner);
    const int n = static_cast<int>(columns);
    // Row by row, as the provider does, in one memory for all three: nobody reads what comes out.
    check_status(multiply(handle, 0, 0, n, static_cast<int>(rows), k, &one, address, type, n, address, type, k, &zero,
                          address, type, n, in_float32, by_default),
                 "cublasGemmEx");
  }
  startup.check(startup.driver().stream_synchronize(used->stream.get()), "multiplying matrices");
  return used;
}

std::shared_ptr<const void> Preload::run_kernels(OnnxRuntime& runtime, int device) const {
  std::vector<TinyNode> nodes;
  const auto add = [&](const char* name, const std::vector<const TinyValue*>& inputs) {
    if (operators_.count(name) != 0) {
      nodes.push_back({name, inputs});
    }
  };
  for (const char* name : {"Add", "Sub", "Mul", "Div"}) {
    add(name, {&rows(), &vector()});
  }
  for (const char* name : {"Relu", "Tanh", "Sigmoid", "Erf", "Sqrt", "Exp", "Softmax", "Transpose",
                           "com.microsoft:FastGelu", "com.microsoft:Gelu"}) {
    add(name, {&rows()});
  }
  add("LayerNormalization", {&rows(), &vector(), &vector()});
  add("com.microsoft:BiasGelu", {&rows(), &vector()});
  if (nodes.empty() || element_type_ == bfloat16) {
    nodes = {{"Add", {&rows(), &vector()}}};
  }
  return run_tiny(runtime, device, element_type_, nodes, false);
}

std::shared_ptr<const void> Preload::run_products(OnnxRuntime& runtime, int device) const {
  std::vector<TinyNode> nodes = {{"MatMul", {&rows(), &matrix()}}};
  if (operators_.count("Gemm") != 0) {
    nodes.push_back({"Gemm", {&rows(), &matrix(), &vector()}});
  }
  return run_tiny(runtime, device, element_type_, nodes, false);
}

std::shared_ptr<const void> Preload::run_convolution(OnnxRuntime& runtime, int device) const {
  return run_tiny(runtime, device, element_type_, {{"Conv", {&image(), &filters()}}}, true);
}

namespace {

struct Running {
  std::mutex mutex;
  std::vector<std::thread> threads;
  std::atomic<bool> stop{false};
};

Running& running() { return process_singleton<Running>(); }

}  // namespace

void begin_preload(OnnxRuntime& runtime, const std::optional<std::vector<int>>& devices, const ModelIndex& index) {
  Running& all = running();
  const auto preload = std::make_shared<const Preload>(index);
  const auto load = [&runtime, &all, preload](int device) {
    Timeline timeline;
    preload->load(runtime, device, true, &timeline, all.stop);
    for (Span& span : timeline.spans()) {
      CudaStartup::instance().remember(std::move(span));
    }
  };
  const std::lock_guard lock(all.mutex);
  if (devices) {
    for (const int device : *devices) {
      all.threads.emplace_back(load, device);
    }
    return;
  }
  all.threads.emplace_back([load] {
    try {
      std::vector<std::thread> others;
      for (int device = CudaStartup::instance().device_count() - 1; device > 0; --device) {
        others.emplace_back(load, device);
      }
      load(0);
      for (std::thread& other : others) {
        other.join();
      }
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the load says that CUDA does not start
    }
  });
}

void end_preloads() {
  Running& all = running();
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(all.mutex);
    all.stop.store(true);
    threads.swap(all.threads);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace ortmulti
