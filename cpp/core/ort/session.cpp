#include "core/ort/session.hpp"

#include <malloc.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

#include "core/base/fork.hpp"
#include "core/base/source.hpp"
#include "core/base/text.hpp"
#include "core/cuda/device_sync_guard.hpp"
#include "core/cuda/memory.hpp"
#include "core/cuda/startup.hpp"
#include "core/ort/advice.hpp"
#include "core/ort/checked.hpp"
#include "core/ort/device_use.hpp"
#include "core/ort/session_steps.hpp"

namespace ortmulti {

Error with_device_memory(const Error& error, const Device& device) {
  if (!device.is_cuda() || error.kind() != ErrorKind::out_of_memory) {
    return error;
  }
  std::string message = error.what();
  try {
    const CudaStartup::Memory memory = CudaStartup::instance().memory(device.index);
    message += " (" + to_string(device) + " has " + megabytes(memory.free) + " free of " + megabytes(memory.total) +
               " now that the failed session's memory is returned)";
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the first error matters, not the one about its detail
  }
  return Error(error.kind(), message);
}

namespace {

// Does a step towards what `made` will hold. An error frees that, and says in what it happened, what to do, and how
// much memory there is where a GPU's is exhausted. `advise` gets ONNX Runtime's text.
template <typename Made, typename Advise, typename Step>
void make_part(std::shared_ptr<Made>& made, const std::string& context, const Device& device, const Advise& advise,
               Step step) {
  try {
    step();
  } catch (const Ort::Exception& exception) {
    made.reset();
    throw with_device_memory(from_onnxruntime(exception, context, advise(exception.what())), device);
  } catch (const Error& error) {
    throw Error(error.kind(), context + ": " + error.what());
  }
}

const ValueInfo* find(const std::vector<ValueInfo>& values, std::string_view name) {
  const auto found = std::ranges::find(values, name, &ValueInfo::name);
  return found == values.end() ? nullptr : &*found;
}

std::string names_of(const std::vector<ValueInfo>& values) {
  const std::string names = listed(values, [](const ValueInfo& value) { return in_quotes(value.name); });
  return names.empty() ? "none" : names;
}

bool asks_for_own_stream(const Provider& provider) {
  const auto option = provider.options.find("user_compute_stream");
  return option != provider.options.end() && option->second == Session::own_compute_stream;
}

// The providers' options, with a new stream where they ask for one of the session's own.
std::vector<Provider> with_compute_stream(std::vector<Provider> providers, const Device& device,
                                          std::unique_ptr<const CudaStream>& stream) {
  for (Provider& provider : providers) {
    if (device.is_cuda() && asks_for_own_stream(provider)) {
      stream = std::make_unique<const CudaStream>(CudaStartup::instance(), device.index);
      provider.options["user_compute_stream"] = std::to_string(reinterpret_cast<std::uintptr_t>(stream->get()));
    }
  }
  return providers;
}

std::shared_ptr<ThreadGroup> start_threads(const ThreadSettings& settings, const Device& device, int count) {
  const bool near_gpu = settings.near_device && device.is_cuda();
  const std::string gpu = near_gpu ? CudaStartup::instance().describe(device.index).pci_bus_id : std::string();
  return ThreadGroup::start(settings, to_string(device), cpus_for(settings, gpu), count);
}

Ort::Session open_session(OnnxRuntime& runtime, const ModelSource& model, const Ort::SessionOptions& options) {
  if (model.bytes) {
    return Ort::Session(runtime.env(), model.bytes.get(), model.size, options);
  }
  return Ort::Session(runtime.env(), model.path.c_str(), options);
}

// Whether a run more is nobody's concern: it is where runs are counted until a graph is captured, or written to a
// profile.
bool may_run_unasked(const std::vector<Provider>& providers, const SessionOptions& options) {
  return !options.enable_profiling && std::ranges::none_of(providers, [](const Provider& provider) {
    const auto graphs = provider.options.find("enable_cuda_graph");
    return provider.name == "TensorrtExecutionProvider" || (graphs != provider.options.end() && graphs->second != "0");
  });
}

}  // namespace

std::string ModelSource::describe() const {
  return bytes && path.empty() ? "a model of " + std::to_string(size) + " bytes" : "'" + path + "'";
}

std::shared_ptr<const Source> ModelSource::source() const {
  return bytes ? memory_source(describe(), bytes, size) : file_source(path);
}

Device device_of(const std::vector<Provider>& providers) {
  for (const Provider& provider : providers) {
    if (!provider.devices.empty()) {
      return provider.devices.front()->device;
    }
    if (provider.name.find(':') != std::string::npos) {
      return parse_device(provider.name);
    }
    if (provider.name == "CUDAExecutionProvider" || provider.name == "TensorrtExecutionProvider") {
      const auto id = provider.options.find("device_id");
      return id == provider.options.end() ? Device::cuda(0) : parse_device("cuda:" + id->second);
    }
  }
  return Device::cpu();
}

Session::Session(OnnxRuntime& runtime, const ModelSource& model, const SessionOptions& options,
                 std::vector<Provider> providers, Timeline* timeline, const Weights& weights) {
  const auto description = std::make_shared<Description>();
  description->model = model.describe();
  description->device = device_of(providers);
  description->options = options;
  description->options.additions = {};
  description->options.providers = {};
  description->providers = std::move(providers);
  description->generation = fork_generation();
  const Device& device = description->device;
  const std::string name = to_string(device);
  std::optional<MindsNoCaptures> mode;
  if (device.is_cuda()) {
    static_cast<void>(DeviceUse::ended_threads());  // counts this thread's end
    CudaStartup& startup = CudaStartup::instance();
    startup.make_current(device.index, timeline);
    mode.emplace(startup.driver());
    startup.wait_for_libraries(timeline);
  }
  const std::string context = "creating a session of " + description->model + " on " + name;
  const auto advise = [&](const std::string& text) { return advice_on_model(model, text, runtime.version()); };
  auto live = std::make_shared<LiveSession>();
  live->additions = std::make_shared<const ModelAdditions>(options.additions);
  Ort::SessionOptions ort_options{nullptr};
  std::shared_ptr<ThreadGroup> threads;
  make_part(live, context, device, advise, [&] {
    const ScopedSpan span(timeline, "prepare session", name);
    for (Provider& provider : description->providers) {
      provider = with_devices(runtime, std::move(provider));
    }
    live->plugins = use_plugins(description->providers);
    ort_options = to_onnxruntime(options, with_compute_stream(description->providers, device, live->compute_stream));
    if (is_on(options, "session.use_env_allocators")) {
      runtime.share_arena(device);
    }
    if (options.threads) {
      threads = start_threads(*options.threads, device, pool_threads(options));
      threads->apply_to(ort_options);
      live->threads = threads;
      description->threads = threads;
    }
  });
  if (is_on(options, "session.use_ort_model_bytes_directly")) {  // else ONNX Runtime copies what it needs of them
    live->model_bytes = model.bytes;
  }
  if (weights) {
    live->weights = checked(context, weights);
  }
  make_part(live, context, device, advise, [&] {
    std::optional<WeightUseWatch> watch;
    if (live->weights) {
      live->weights->add_to(ort_options);
      watch.emplace(options).apply(ort_options);
      // Else a run's logger would take the level that the watch gave to the session's.
      live->run_options = Ort::RunOptions();
      live->run_options.SetRunLogSeverityLevel(log_severity(options));
    }
    const ScopedSpan span(timeline, "create session", name);
    {
      const DeviceSyncGuard guard(device, DeviceSyncGuard::Work::waits_for_device);
      const auto open = [&] { live->session = open_session(runtime, model, ort_options); };
      if (std::ranges::any_of(description->providers, asks_for_own_stream)) {
        in_own_thread([&] {
          std::optional<ScopedContext> current;
          if (device.is_cuda()) {
            current.emplace(CudaStartup::instance(), device.index);
          }
          open();
        });
      } else {
        open();
      }
    }
    if (threads) {
      threads->dismiss_spare();
    }
    read_declarations(live->session, *description);
    if (watch) {
      description->weight_use = watch->use();
    }
  });
  description->may_run_unasked = may_run_unasked(description->providers, options);
  if (device.is_cuda() && description->may_run_unasked) {
    // The CUDA provider keeps cuBLAS and cuDNN handles for each thread, 64 MiB and more on Hopper. It takes them from a
    // thread for the next one when a run ends there, so that those of this one, which never runs it, would stay unused.
    const ScopedSpan span(timeline, "hand on handles", name);
    const DeviceSyncGuard guard(device, DeviceSyncGuard::Work::waits_for_device);
    live->ended_threads.store(DeviceUse::ended_threads());
    const DeviceUse use(device);
    run_nothing(live->session, description->inputs, description->outputs, Ort::RunOptions());
  }
  if (has_arena(device, options)) {
    begin_arena(live->session, device);
  }
  description_ = description;
  live_ = std::move(live);
  compute_stream_ = live_->compute_stream ? live_->compute_stream->get() : nullptr;
}

Session::Session(std::shared_ptr<const Description> description, std::shared_ptr<LiveSession> live)
    : description_(std::move(description)),
      live_(std::move(live)),
      compute_stream_(live_->compute_stream ? live_->compute_stream->get() : nullptr) {}

Session::~Session() {
  close();
  if (live_) {  // of a parent process, to which it is left
    // NOLINTNEXTLINE(cppcoreguidelines-owning-memory)
    static_cast<void>(new (std::nothrow) std::shared_ptr<LiveSession>(live_));
  }
}

std::shared_ptr<Session> Session::share() {
  const auto lock = lock_for_use();
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): the constructor is not std::make_shared's to call
  return std::shared_ptr<Session>(new Session(description_, live_));
}

void Session::read_declarations(const Ort::Session& session, Description& description) {
  const Ort::AllocatorWithDefaultOptions allocator;
  const auto read = [&](std::vector<ValueInfo>& values, std::size_t count, auto name, auto type) {
    for (std::size_t i = 0; i < count; ++i) {
      values.push_back(make_value_info((session.*name)(i, allocator).get(), (session.*type)(i)));
    }
  };
  using From = Ort::Session;
  read(description.inputs, session.GetInputCount(), &From::GetInputNameAllocated, &From::GetInputTypeInfo);
  read(description.outputs, session.GetOutputCount(), &From::GetOutputNameAllocated, &From::GetOutputTypeInfo);
  read(description.overridable_initializers, session.GetOverridableInitializerCount(),
       &From::GetOverridableInitializerNameAllocated, &From::GetOverridableInitializerTypeInfo);
  description.metadata = read_metadata(session.GetModelMetadata());
}

const ValueInfo& Session::input(std::string_view name) const {
  if (const ValueInfo* found = find(inputs(), name)) {
    return *found;
  }
  if (const ValueInfo* found = find(overridable_initializers(), name)) {
    return *found;
  }
  throw Error(ErrorKind::invalid_argument,
              "unknown input '" + std::string(name) + "': " + model() + " has " + names_of(inputs()));
}

const ValueInfo& Session::output(std::string_view name) const {
  if (const ValueInfo* found = find(outputs(), name)) {
    return *found;
  }
  throw Error(ErrorKind::invalid_argument,
              "unknown output '" + std::string(name) + "': " + model() + " has " + names_of(outputs()));
}

void Session::check_complete(const std::vector<const char*>& fed) const {
  std::vector<std::string> missing;
  for (const ValueInfo& input : inputs()) {
    if (std::ranges::find(fed, input.name) == fed.end() && !input.type.starts_with("optional(")) {
      missing.push_back(input.name);
    }
  }
  if (!missing.empty()) {
    throw Error(ErrorKind::invalid_argument, "Required inputs ([" + listed(missing, in_quotes) +
                                                 "]) are missing from input feed ([" + listed(fed, in_quotes) +
                                                 "]): " + model() + " needs " + names_of(inputs()));
  }
}

bool Session::inherited() const noexcept { return description_->generation != fork_generation(); }

bool Session::survives_fork() const noexcept {
  // A pool's threads do not exist in the child, and a CUDA context cannot be used there. A plug-in may have threads.
  return device() == Device::cpu() && options().use_per_session_threads && options().intra_op_num_threads == 1 &&
         (options().execution_mode == ORT_SEQUENTIAL || options().inter_op_num_threads == 1);
}

Session::Lock Session::lock_for_use() {
  if (inherited() && !survives_fork()) {
    throw Error(ErrorKind::forked, "the session of " + model() + " on " + to_string(device()) +
                                       " was created before this process was forked, and its threads stayed with the "
                                       "parent. Create it after the fork, or start workers with multiprocessing's "
                                       "'spawn'");
  }
  if (!closed()) {
    std::shared_lock lock(mutex_);
    if (live_) {
      return lock;
    }
  }
  throw closed_error();
}

Error Session::closed_error() const {
  return Error(ErrorKind::closed, "the session of " + model() + " on " + to_string(device()) +
                                      " is closed: create it again, or use it inside its 'with' block");
}

std::shared_ptr<const WeightStore> Session::weights(const Lock& /*open*/) const { return live_->weights; }

WeightStore::Hold Session::hold_weights(const Lock& /*open*/) const {
  return live_->weights ? live_->weights->hold() : WeightStore::Hold();
}

Ort::IoBinding Session::make_binding(const Lock& /*open*/) const {
  return checked("binding inputs and outputs of " + model(), [this] { return Ort::IoBinding(live_->session); });
}

void Session::bind_inputs(const Lock& /*open*/, const std::function<void()>& bind) const {
  if (device().is_cuda()) {
    use_guarded(false, 0, false, bind);
  } else {
    bind();
  }
}

Ort::Allocator Session::make_allocator(const Lock& /*open*/, const Ort::MemoryInfo& memory) const {
  return {live_->session, memory};
}

void Session::in_own_thread(const std::function<void()>& work) { own_thread_.call(work); }

void Session::close() {
  if (free_session(false)) {
    // Threads that have ended created it, each in a heap of its own, and the C library keeps what is freed of these.
    malloc_trim(0);
  }
}

bool Session::free_session(bool cancel) {
  async_runs_.close(cancel);  // while the session can still be used: they may be waiting for their turn
  caller_threads_.close();
  own_thread_.close(false);
  closed_.store(true, std::memory_order_release);
  if (inherited()) {
    // Freeing it would wait for threads that only the parent has: the session's own, or one that was running it. Left
    // as it is, since a run of this process may use it.
    return false;
  }
  // May belong to Python's objects, which are not freed under a lock.
  std::shared_ptr<const void> model_bytes;
  std::shared_ptr<const ModelAdditions> additions;
  std::shared_ptr<const WeightStore> weights;  // whose memory is freed with a guard of its own
  const std::unique_lock lock(mutex_);         // for as long as it takes: who closes at exit must not be overtaken
  const std::weak_ptr<const LiveSession> watched = live_;
  const bool was_open = live_ != nullptr;
  if (was_open) {
    const DeviceSyncGuard guard(device(), DeviceSyncGuard::Work::waits_for_device);
    std::optional<ScopedContext> current;
    if (device().is_cuda()) {
      // ONNX Runtime's handles wait for the device that is current as they are freed, whichever that is (1.31.1).
      current.emplace(CudaStartup::instance(), device().index, std::nothrow);
    }
    model_bytes = live_->model_bytes;
    additions = live_->additions;
    weights = live_->weights;
    live_.reset();
    if (compute_stream_ != nullptr) {  // it had graphs, and cuBLAS allocates in these (13.1: 32 MiB on an H200)
      CudaStartup::instance().trim_graph_memory(device().index);
    }
  }
  return was_open && watched.expired();
}

}  // namespace ortmulti
