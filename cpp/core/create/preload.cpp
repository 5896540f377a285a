#include "core/create/preload.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <system_error>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/fork.hpp"
#include "core/base/left_threads.hpp"
#include "core/base/scope_exit.hpp"
#include "core/create/creation.hpp"
#include "core/cuda/device_sync_guard.hpp"
#include "core/cuda/graph.hpp"
#include "core/cuda/memory.hpp"
#include "core/cuda/startup.hpp"
#include "core/onnx/tiny_model.hpp"
#include "core/ort/session.hpp"
#include "core/ort/value.hpp"

namespace ortmulti {
namespace {

// ONNX's TensorProto.DataType.
constexpr int float32 = 1;
constexpr int float16 = 10;
constexpr int bfloat16 = 16;

// The library that the CUDA provider has opened.
void* opened_cublas() {
  for (const char* name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11"}) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD); library != nullptr) {
      return library;
    }
  }
  throw Error(ErrorKind::library, "it is not open");
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

// The threads.
class Running {
 public:
  // Without a thread the first run loads the kernels itself.
  void begin(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    if (ended_) {
      return;
    }
    try {
      threads_.leave(LeftThreads::start([this, work = std::move(work)] {
        const ScopeExit ended([this] {
          const std::lock_guard ending(mutex_);
          --under_way_;
          done_.notify_all();
        });
        work();
      }));
      ++under_way_;
    } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch)
    }
  }
  // Counts those that work on a device.
  void add_working(int device, int more) {
    const std::lock_guard lock(mutex_);
    working_[device] += more;
    done_.notify_all();
  }
  bool goes_on() {
    const std::lock_guard lock(mutex_);
    return !ended_;
  }
  void wait_for(int device) {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return working_[device] == 0; });
  }
  void wait_for_all() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return under_way_ == 0; });
  }
  void end() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    threads_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  std::map<int, int> working_;
  int under_way_ = 0;  // threads
  LeftThreads threads_;
  bool ended_ = false;
};

Running& running() { return process_singleton<Running>(); }

// Creates a session of the nodes on the device and runs it once.
std::shared_ptr<const void> run_tiny(OnnxRuntime& runtime, int device, int element_type,
                                     const std::vector<TinyNode>& nodes) {
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
  const ModelSource model{"", {bytes, reinterpret_cast<const unsigned char*>(bytes->data())}, bytes->size()};
  auto session = std::make_shared<Session>(runtime, model, options, providers, nullptr);
  session->run(Ort::RunOptions{nullptr}, zeros(session->inputs()), name_pointers(session->outputs()));
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
  std::ranges::sort(by_bytes, std::ranges::greater());
  constexpr std::size_t max_shapes = 4;
  constexpr std::int64_t largest = 8192;
  for (const auto& [size, shape] : by_bytes) {
    if (matrices_.size() < max_shapes && shape[0] <= largest && shape[1] <= largest) {
      matrices_.push_back(shape);
    }
  }
  if (matrices_.empty()) {
    matrices_.push_back({64, 64});
  }
}

void Preload::begin(OnnxRuntime& runtime, int device, bool sessions, const Load& load) const {
  const auto begin_step = [&](const char* what, const Work& work) {
    if (claim(to_string(Device::cuda(device)) + what + std::to_string(element_type_))) {
      running().begin([=] { run_step(device, what, work, load); });
    }
  };
  constexpr std::array with_cublas = {"MatMul",
                                      "Gemm",
                                      "com.microsoft:FusedMatMul",
                                      "com.microsoft:Attention",
                                      "com.microsoft:MultiHeadAttention",
                                      "com.microsoft:GemmFastGelu"};
  if (std::ranges::any_of(with_cublas, [this](auto name) { return operators_.contains(name); })) {
    begin_step("cuBLAS", [preload = *this, device] { return preload.multiply(device); });
  }
  if (sessions && !operators_.empty()) {
    begin_step("kernels", [preload = *this, device, &runtime] { return preload.run_kernels(runtime, device); });
  }
}

void Preload::run_step(int device, const std::string& what, const Work& work, const Load& load) {
  const std::string name = to_string(Device::cuda(device));
  const auto add = [&](std::string text, std::int64_t begin_ns) {
    if (load.timeline) {
      load.timeline->add(std::move(text), begin_ns, steady_now_ns(), name);
    } else {
      CudaStartup::instance().remember({std::move(text), begin_ns, steady_now_ns(), this_thread(), name});
    }
  };
  std::optional<MindsNoCaptures> mode;
  try {
    CudaStartup::instance().make_current(device);
    mode.emplace(CudaStartup::instance().driver());
    CudaStartup::instance().wait_for_libraries(nullptr);
  } catch (const Error&) {
    return;  // the sessions' creation says so
  }
  running().add_working(device, 1);
  const ScopeExit done([device] { running().add_working(device, -1); });
  if (!running().goes_on() || (load.wanted && !load.wanted())) {
    return;
  }
  std::shared_ptr<const void> used;
  std::string text = "preload " + what;
  std::int64_t begin_ns = steady_now_ns();
  try {
    used = work();
  } catch (const std::exception& error) {  // whoever needs it says what is wrong
    text += std::string(" failed: ") + error.what();
  }
  add(text, begin_ns);
  if (used) {
    if (load.before_freeing) {
      load.before_freeing();
    }
    begin_ns = steady_now_ns();
    used.reset();
    add("free what was preloaded with", begin_ns);
  }
}

std::shared_ptr<const void> Preload::multiply(int device) const {
  void* library = opened_cublas();
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
    std::unique_ptr<void, std::function<void(void*)>> handle;
    Used(CudaStartup& startup, int device, std::size_t bytes, int (*destroy)(void*))
        : memory(startup, device, bytes, "a product's matrices"),
          stream(startup, device),
          handle(nullptr, [device, destroy](void* made) {
            const DeviceSyncGuard guard(Device::cuda(device), DeviceSyncGuard::Work::waits_for_device);
            destroy(made);
          }) {}
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
  void* const address = to_pointer(used->memory.address());
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
  const TinyValue rows{"x", {8, 64}};
  const TinyValue vector{"v", {64}};
  std::vector<TinyNode> nodes;
  const auto add = [&](const char* name, const std::vector<const TinyValue*>& inputs) {
    if (operators_.contains(name)) {
      nodes.push_back({name, inputs});
    }
  };
  for (const char* name : {"Add", "Sub", "Mul", "Div"}) {
    add(name, {&rows, &vector});
  }
  for (const char* name : {"Relu", "Tanh", "Sigmoid", "Erf", "Sqrt", "Exp", "Softmax", "Transpose",
                           "com.microsoft:FastGelu", "com.microsoft:Gelu"}) {
    add(name, {&rows});
  }
  add("LayerNormalization", {&rows, &vector, &vector});
  add("com.microsoft:BiasGelu", {&rows, &vector});
  if (nodes.empty() || element_type_ == bfloat16) {
    nodes = {{"Add", {&rows, &vector}}};
  }
  return run_tiny(runtime, device, element_type_, nodes);
}

void begin_preload(OnnxRuntime& runtime, const std::optional<std::vector<int>>& devices, const ModelIndex& index) {
  const Preload preload(index);
  const bool sessions = why_in_turn(runtime.version()).empty();  // others may be created at the same time
  if (devices) {
    for (const int device : *devices) {
      preload.begin(runtime, device, sessions, {});
    }
    return;
  }
  running().begin([&runtime, preload, sessions] {
    try {
      for (int device = 0; device < CudaStartup::instance().device_count(); ++device) {
        preload.begin(runtime, device, sessions, {});
      }
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the load says that CUDA does not start
    }
  });
}

void wait_for_preloads(int device) { running().wait_for(device); }

void wait_for_preloads() { running().wait_for_all(); }

void end_preloads() { running().end(); }

}  // namespace ortmulti
