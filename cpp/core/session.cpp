#include "core/session.hpp"

#include <malloc.h>

#include <cstdlib>
#include <mutex>
#include <utility>

#include "core/cuda_startup.hpp"
#include "core/error.hpp"
#include "core/process_fork.hpp"
#include "core/value_info.hpp"

namespace ortmulti {
namespace {

std::string megabytes(std::uint64_t bytes) { return std::to_string(bytes / 1'000'000) + " MB"; }

// Adds to an error of exhausted GPU memory how much there is.
Error with_device_memory(const Error& error, const Device& device) {
  std::string message = error.what();
  try {
    const CudaStartup::Memory memory = CudaStartup::instance().memory(device.index);
    message += " (" + to_string(device) + " has " + megabytes(memory.free) + " free of " + megabytes(memory.total) +
               " now that the failed session's memory is returned)";
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the first error matters, not the one about its detail
  }
  return Error(error.kind(), message);
}

// ONNX Runtime copies what it needs of a model's bytes, unless it is told not to.
bool uses_bytes_in_place(const SessionOptions& options) {
  const auto entry = options.config_entries.find("session.use_ort_model_bytes_directly");
  return entry != options.config_entries.end() && entry->second == "1";
}

Ort::Session open_session(OnnxRuntime& runtime, const ModelSource& model, const Ort::SessionOptions& options) {
  if (model.in_memory) {
    return Ort::Session(runtime.env(), model.bytes, model.size, options);
  }
  return Ort::Session(runtime.env(), model.path.c_str(), options);
}

}  // namespace

ModelSource ModelSource::from_path(std::string path) {
  ModelSource source;
  source.path = std::move(path);
  return source;
}

ModelSource ModelSource::from_bytes(const void* bytes, std::size_t size, std::shared_ptr<const void> owner) {
  ModelSource source;
  source.in_memory = true;
  source.bytes = bytes;
  source.size = size;
  source.owner = std::move(owner);
  return source;
}

std::string ModelSource::describe() const {
  return in_memory ? "a model of " + std::to_string(size) + " bytes" : "'" + path + "'";
}

Device device_of(const std::vector<Provider>& providers) {
  for (const Provider& provider : providers) {
    if (provider.name == "CUDAExecutionProvider" || provider.name == "TensorrtExecutionProvider") {
      const auto id = provider.options.find("device_id");
      return id == provider.options.end() ? Device::cuda(0) : parse_device("cuda:" + id->second);
    }
  }
  return Device::cpu();
}

Session::Session(OnnxRuntime& runtime, const ModelSource& model, const SessionOptions& options,
                 std::vector<Provider> providers, Timeline* timeline)
    : model_(model.describe()),
      device_(device_of(providers)),
      options_(options),
      model_bytes_(uses_bytes_in_place(options) ? model.owner : nullptr),
      providers_(std::move(providers)),
      generation_(fork_generation()) {
  const std::string name = to_string(device_);
  if (device_.is_cuda()) {
    CudaStartup& startup = CudaStartup::instance();
    startup.make_current(device_.index, timeline);
    startup.wait_for_libraries(timeline);
  }
  const std::string context = "creating a session of " + model_ + " on " + name;
  try {
    const Ort::SessionOptions ort_options = to_onnxruntime(options_, providers_);
    const ScopedSpan span(timeline, "create session", name);
    session_ = std::make_unique<Ort::Session>(open_session(runtime, model, ort_options));
    read_declarations();
  } catch (const Ort::Exception& exception) {
    session_.reset();
    const Error error = from_onnxruntime(exception, context);
    throw device_.is_cuda() && error.kind() == ErrorKind::out_of_memory ? with_device_memory(error, device_) : error;
  } catch (const Error& error) {
    throw Error(error.kind(), context + ": " + error.what());
  }
}

Session::~Session() {
  close();
  if (generation_ != fork_generation()) {
    static_cast<void>(session_.release());  // NOLINT(bugprone-unused-return-value): left to the parent
  }
}

void Session::read_declarations() {
  const Ort::AllocatorWithDefaultOptions allocator;
  for (std::size_t i = 0; i < session_->GetInputCount(); ++i) {
    inputs_.push_back(
        make_value_info(session_->GetInputNameAllocated(i, allocator).get(), session_->GetInputTypeInfo(i)));
  }
  for (std::size_t i = 0; i < session_->GetOutputCount(); ++i) {
    outputs_.push_back(
        make_value_info(session_->GetOutputNameAllocated(i, allocator).get(), session_->GetOutputTypeInfo(i)));
  }
  for (std::size_t i = 0; i < session_->GetOverridableInitializerCount(); ++i) {
    overridable_initializers_.push_back(
        make_value_info(session_->GetOverridableInitializerNameAllocated(i, allocator).get(),
                        session_->GetOverridableInitializerTypeInfo(i)));
  }
  metadata_ = read_metadata(session_->GetModelMetadata());
}

bool Session::survives_fork() const noexcept {
  // A pool's threads do not exist in the child, and a CUDA context cannot be used there.
  return !device_.is_cuda() && options_.intra_op_num_threads == 1 &&
         (options_.execution_mode == ORT_SEQUENTIAL || options_.inter_op_num_threads == 1);
}

std::shared_lock<std::shared_mutex> Session::lock_for_use() {
  if (generation_ != fork_generation() && !survives_fork()) {
    throw Error(ErrorKind::forked, "the session of " + model_ + " on " + to_string(device_) +
                                       " was created before this process was forked, and its threads stayed with the "
                                       "parent; create it after the fork, or start workers with multiprocessing's "
                                       "'spawn'");
  }
  if (!closed()) {
    std::shared_lock lock(mutex_);
    if (session_) {
      return lock;
    }
  }
  throw Error(ErrorKind::closed, "the session of " + model_ + " on " + to_string(device_) + " is closed");
}

void Session::run(const Ort::RunOptions& run_options, const char* const* input_names, const Ort::Value* inputs,
                  std::size_t input_count, const char* const* output_names, Ort::Value* outputs,
                  std::size_t output_count) {
  const auto lock = lock_for_use();
  try {
    session_->Run(run_options, input_names, inputs, input_count, output_names, outputs, output_count);
  } catch (const Ort::Exception& exception) {
    const Error error = from_onnxruntime(exception, "running " + model_ + " on " + to_string(device_));
    throw device_.is_cuda() && error.kind() == ErrorKind::out_of_memory ? with_device_memory(error, device_) : error;
  }
}

std::string Session::end_profiling() {
  const auto lock = lock_for_use();
  try {
    const Ort::AllocatorWithDefaultOptions allocator;
    return session_->EndProfilingAllocated(allocator).get();
  } catch (const Ort::Exception& exception) {
    throw from_onnxruntime(exception, "ending the profile of " + model_);
  }
}

std::uint64_t Session::profiling_start_time_ns() {
  const auto lock = lock_for_use();
  return session_->GetProfilingStartTimeNs();
}

void Session::close() {
  if (free_session()) {
    // Threads that have ended created it, each in a heap of its own, and the C library keeps what is freed of these.
    malloc_trim(0);
  }
}

bool Session::free_session() {
  closed_.store(true, std::memory_order_release);
  if (generation_ != fork_generation()) {
    // Freeing it would wait for threads that only the parent has: the session's own, or one that was running it. Left
    // as it is, since a run of this process may use it.
    return false;
  }
  const std::unique_lock lock(mutex_);
  const bool was_open = session_ != nullptr;
  session_.reset();
  return was_open;
}

namespace {

struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<Session>> sessions;
};

// Replaced in a forked child, since another thread of the parent may have held its lock.
std::atomic<Registry*> registry{nullptr};

void new_registry() { registry.store(new Registry()); }  // NOLINT(cppcoreguidelines-owning-memory): needed up to exit

Registry& live_sessions() {
  static const bool watched = [] {
    new_registry();
    on_fork_in_child(new_registry);
    return true;
  }();
  static_cast<void>(watched);
  return *registry.load();
}

}  // namespace

void register_for_shutdown(const std::shared_ptr<Session>& session) {
  Registry& live = live_sessions();
  {
    const std::lock_guard lock(live.mutex);
    auto& sessions = live.sessions;
    if (sessions.size() == sessions.capacity()) {  // drop the expired ones before the vector would grow
      std::vector<std::weak_ptr<Session>> kept;
      for (auto& entry : sessions) {
        if (!entry.expired()) {
          kept.push_back(std::move(entry));
        }
      }
      kept.reserve(2 * kept.size() + 16);
      sessions = std::move(kept);
    }
    sessions.push_back(session);
  }
  // Handlers run in reverse order: one registered after a device's start runs before that driver's own.
  static std::once_flag with_cpu;
  static std::once_flag with_cuda;
  std::call_once(session->device().is_cuda() ? with_cuda : with_cpu, [] { std::atexit(close_all_sessions); });
}

void close_all_sessions() {
  std::vector<std::weak_ptr<Session>> sessions;
  {
    Registry& live = live_sessions();
    const std::lock_guard lock(live.mutex);
    sessions.swap(live.sessions);
  }
  for (const auto& entry : sessions) {
    if (const std::shared_ptr<Session> session = entry.lock()) {
      session->free_session();
    }
  }
}

}  // namespace ortmulti
