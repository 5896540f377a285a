#include "core/ort/library.hpp"

#include <dlfcn.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/cpu_affinity.hpp"
#include "core/base/error.hpp"
#include "core/base/fork.hpp"
#include "core/base/timeline.hpp"
#include "core/ort/api_compat.hpp"
#include "core/ort/checked.hpp"
#include "core/ort/weight_use.hpp"

namespace ortmulti {
namespace {

std::atomic<int> log_severity_of_all{ORT_LOGGING_LEVEL_WARNING};

Ort::ThreadingOptions to_onnxruntime(const GlobalThreadPools& pools, std::shared_ptr<ThreadGroup>& threads) {
  Ort::ThreadingOptions options;
  // Threads that the core makes are there before ONNX Runtime asks for them, so that their number must be known.
  const auto by_the_cores = [&] { return pools.threads ? usable_cores() : threads_per_session(1); };
  const int intra = pools.intra_op_num_threads == 0 ? by_the_cores() : pools.intra_op_num_threads;
  const int inter = pools.inter_op_num_threads == 0 ? by_the_cores() : pools.inter_op_num_threads;
  options.SetGlobalIntraOpNumThreads(intra);
  options.SetGlobalInterOpNumThreads(inter);
  if (pools.threads) {
    threads = ThreadGroup::start(*pools.threads, "global", cpus_for(*pools.threads),
                                 std::max(0, intra - 1) + std::max(0, inter - 1));
    threads->apply_to(options);
  }
  if (pools.allow_spinning) {
    options.SetGlobalSpinControl(*pools.allow_spinning ? 1 : 0);
  }
  if (pools.denormal_as_zero) {
    options.SetGlobalDenormalAsZero();
  }
  if (!pools.intra_op_affinity.empty()) {
    // The C++ API has no wrapper for this one.
    Ort::ThrowOnError(Ort::GetApi().SetGlobalIntraOpThreadAffinity(options, pools.intra_op_affinity.c_str()));
  }
  return options;
}

// Opens the library in the background.
struct Opener {
  std::mutex mutex;
  std::thread thread;
};

std::mutex open_mutex;
std::atomic<OnnxRuntime*> opened{nullptr};

struct EnvironmentSettings {
  std::optional<GlobalThreadPools> thread_pools;
  std::optional<bool> telemetry;  // nothing: ONNX Runtime's default
  std::map<std::string, ArenaConfig> arenas;
};

// What the environment is, or will be, made with; the lock is held while it is made, too.
std::mutex environment_mutex;
EnvironmentSettings environment_settings;

thread_local int unlogged = 0;

void ORT_API_CALL enqueue(void* /*unused*/, OrtLoggingLevel severity, const char* category, const char* logger,
                          const char* location, const char* message) {
  const auto text = [](const char* pointer) { return std::string(pointer == nullptr ? "" : pointer); };
  try {
    LogRecord record{static_cast<int>(severity), text(category), text(logger), text(location), text(message)};
    record.time_ns = steady_now_ns();
    record.thread = this_thread();
    if (unlogged == 0 && pass_on(record)) {
      onnxruntime_log().push(std::move(record));
    }
  } catch (...) {  // NOLINT(bugprone-empty-catch): ONNX Runtime calls this from C; a lost log line is the lesser evil
  }
}

// In a forked child ONNX Runtime's exit handlers wait for threads that only the parent has (1.31's do). What else ends
// a process in order, Python's exit handlers and stdio, has run by then or runs here.
void exit_at_once(int status, void* /*unused*/) {
  std::fflush(nullptr);
  _exit(status);
}

bool is_elsewhere(const std::string& file, const std::string& other) {
  using std::filesystem::path;
  return !file.empty() && path(file).parent_path() != path(other).parent_path();
}

void skip_exit_handlers() { static_cast<void>(on_exit(exit_at_once, nullptr)); }

// The configuration of the arena that a device's sessions share; null: there is none.
const ArenaConfig* arena_of(const EnvironmentSettings& settings, const Device& device) {
  auto found = settings.arenas.find(to_string(device));
  found = found == settings.arenas.end() ? settings.arenas.find("") : found;
  return found == settings.arenas.end() ? nullptr : &found->second;
}

void register_arena(Ort::Env& environment, const Device& device, const ArenaConfig& config) {
  std::vector<const char*> keys;
  std::vector<std::size_t> values;
  for (const auto& [key, value] : config) {
    keys.push_back(key.c_str());
    values.push_back(value);
  }
  // The C++ API has a wrapper for the former call alone, which knows fewer of them.
  OrtArenaCfg* made = nullptr;
  Ort::ThrowOnError(Ort::GetApi().CreateArenaCfgV2(keys.data(), values.data(), keys.size(), &made));
  const std::unique_ptr<OrtArenaCfg, decltype(OrtApi::ReleaseArenaCfg)> arena(made, Ort::GetApi().ReleaseArenaCfg);
  if (!device.is_cuda()) {
    environment.CreateAndRegisterAllocator(Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault),
                                           arena.get());
    return;
  }
  const Ort::MemoryInfo memory("Cuda", OrtArenaAllocator, device.index, OrtMemTypeDefault);
  const std::string id = std::to_string(device.index);
  environment.CreateAndRegisterAllocatorV2("CUDAExecutionProvider", memory, {{"device_id", id}}, arena.get());
}

// On Linux ONNX Runtime collects none.
void apply_telemetry(Ort::Env& environment, bool enabled) {
  enabled ? environment.EnableTelemetryEvents() : environment.DisableTelemetryEvents();
}

// Makes the environment with the CPU's arena, and with `threads` for its global thread pools if the core makes these.
Ort::Env make_environment(const EnvironmentSettings& settings, OrtLoggingFunction log,
                          std::shared_ptr<ThreadGroup>& threads) {
  constexpr const char* name = "ortmulti";
  const auto severity = static_cast<OrtLoggingLevel>(log_severity_of_all.load());
  Ort::Env environment = settings.thread_pools
                             ? Ort::Env(to_onnxruntime(*settings.thread_pools, threads), log, nullptr, severity, name)
                             : Ort::Env(severity, name, log, nullptr);
  if (threads) {
    threads->dismiss_spare();
  }
  if (const ArenaConfig* config = arena_of(settings, Device::cpu()); config != nullptr) {
    register_arena(environment, Device::cpu(), *config);
  }
  if (settings.telemetry) {
    apply_telemetry(environment, *settings.telemetry);
  }
  return environment;
}

}  // namespace

Unlogged::Unlogged() { ++unlogged; }
Unlogged::~Unlogged() { --unlogged; }

int default_log_severity() noexcept { return log_severity_of_all.load(); }

LogQueue& onnxruntime_log() { return process_singleton<LogQueue>(); }

OnnxRuntime::OnnxRuntime(const std::string& path, const std::string& cuda_provider) : path_(path) {
  // Local: the onnxruntime Python package may hold a second copy of the same symbols in this process.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    throw Error(ErrorKind::library,
                "cannot open ONNX Runtime's library '" + path + "': " + (reason == nullptr ? "" : reason));
  }
  using GetApiBase = const OrtApiBase* (*)();
  const auto get_api_base = reinterpret_cast<GetApiBase>(dlsym(library, "OrtGetApiBase"));
  if (get_api_base == nullptr) {
    throw Error(ErrorKind::library, "'" + path + "' is no ONNX Runtime library: it does not export OrtGetApiBase");
  }
  const OrtApiBase* base = get_api_base();
  version_ = base->GetVersionString();
  const OrtApi* api = base->GetApi(api_version);
  if (api == nullptr) {
    throw Error(ErrorKind::library, "'" + path + "' is ONNX Runtime " + version_ + ", and 1." +
                                        std::to_string(api_version) + " or newer is needed");
  }
  Ort::InitApi(api);
  // The onnxruntime package registers its plug-in by this sign.
  if (ort_api_compat::have_plugin_api(version_) &&
      (is_elsewhere(cuda_provider, path) || build_info().find(", cuda-plugin-ep=") != std::string::npos)) {
    cuda_plugin_ = cuda_provider;
  }
  on_fork_in_child(skip_exit_handlers);
  // Closing a session calls this from any thread. Where malloc is another library's, the C library initializes its own
  // at the first call, and not safely from two threads at once.
  malloc_trim(0);
}

OnnxRuntime& OnnxRuntime::open(const std::string& path, const std::string& cuda_provider) {
  const std::lock_guard lock(open_mutex);
  OnnxRuntime* runtime = opened.load();
  if (runtime == nullptr) {
    runtime =
        new OnnxRuntime(path, cuda_provider);  // NOLINT(cppcoreguidelines-owning-memory): never closed, see the class
    opened.store(runtime);
  } else if (runtime->path_ != path) {
    throw Error(ErrorKind::library, "this process already uses ONNX Runtime from '" + runtime->path_ +
                                        "' and cannot open '" + path + "' as well");
  }
  return *runtime;
}

void OnnxRuntime::begin_opening(const std::string& path, const std::string& cuda_provider) {
  auto& opener = process_singleton<Opener>();
  const std::lock_guard lock(opener.mutex);
  if (is_open() || opener.thread.joinable()) {
    return;
  }
  try {
    opener.thread = std::thread([path, cuda_provider] {
      try {
        open(path, cuda_provider).env();
      } catch (const Error&) {  // NOLINT(bugprone-empty-catch): whoever needs it tries again
      }
    });
  } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch): the same
  }
}

void OnnxRuntime::join() {
  auto& opener = process_singleton<Opener>();
  const std::lock_guard lock(opener.mutex);
  if (opener.thread.joinable()) {
    opener.thread.join();
  }
}

OnnxRuntime& OnnxRuntime::get() {
  OnnxRuntime* runtime = opened.load();
  if (runtime == nullptr) {
    throw Error(ErrorKind::library, "ONNX Runtime's library has not been opened yet");
  }
  return *runtime;
}

bool OnnxRuntime::is_open() noexcept { return opened.load() != nullptr; }

const Ort::Env& OnnxRuntime::env() {
  if (const Ort::Env* made = env_.load(); made != nullptr) {
    return *made;
  }
  const std::lock_guard lock(environment_mutex);
  if (!has_env()) {
    auto made = checked("starting ONNX Runtime " + version_, [this] {
      return std::make_unique<Ort::Env>(make_environment(environment_settings, enqueue, pool_threads_));
    });
    has_thread_pools_ = environment_settings.thread_pools.has_value();
    generation_ = fork_generation();
    env_.store(made.release());
  }
  return *env_.load();
}

// Null before there is an environment.
Ort::Env* OnnxRuntime::made_env() noexcept {
  const OnnxRuntime* const runtime = opened.load();
  return runtime == nullptr ? nullptr : runtime->env_.load();
}

void OnnxRuntime::set_global_thread_pools(const GlobalThreadPools& pools) {
  const std::lock_guard lock(environment_mutex);
  if (made_env() != nullptr) {
    throw Error(ErrorKind::fail, std::string("ONNX Runtime's environment is there already, ") +
                                     (get().has_thread_pools_ ? "with" : "without") +
                                     " global thread pools: set them before the first session, value or RunOptions");
  }
  environment_settings.thread_pools = pools;
}

void OnnxRuntime::set_arenas(std::map<std::string, ArenaConfig> arenas) {
  const std::lock_guard lock(environment_mutex);
  if (made_env() != nullptr) {
    throw Error(ErrorKind::fail,
                "ONNX Runtime's environment is there already: configure arenas before the first session, value or "
                "RunOptions");
  }
  environment_settings.arenas = std::move(arenas);
}

bool OnnxRuntime::has_arena(const Device& device) {
  const std::lock_guard lock(environment_mutex);
  return arena_of(environment_settings, device) != nullptr;
}

void OnnxRuntime::share_arena(const Device& device) {
  static_cast<void>(env());
  const std::lock_guard lock(environment_mutex);
  if (environment_settings.arenas.empty()) {
    throw Error(ErrorKind::invalid_argument,
                "session.use_env_allocators is 1, and no arena is shared: call configure(arena=...) before the first "
                "session, value or RunOptions");
  }
  const ArenaConfig* config = device.is_cuda() ? arena_of(environment_settings, device) : nullptr;
  if (config != nullptr && !shared_arenas_.contains(to_string(device))) {
    register_arena(*env_.load(), device, *config);
    shared_arenas_.insert(to_string(device));
  }
}

void OnnxRuntime::set_log_severity(int severity) {
  const std::lock_guard lock(environment_mutex);
  if (Ort::Env* const environment = made_env()) {
    checked("setting the default log severity",
            [&] { environment->UpdateEnvWithCustomLogLevel(static_cast<OrtLoggingLevel>(severity)); });
  }
  log_severity_of_all.store(severity);
}

void OnnxRuntime::set_telemetry(bool enabled) {
  const std::lock_guard lock(environment_mutex);
  if (Ort::Env* const environment = made_env()) {
    checked("setting telemetry", [&] { apply_telemetry(*environment, enabled); });
  }
  environment_settings.telemetry = enabled;
}

void OnnxRuntime::check_global_thread_pools() {
  static_cast<void>(env());
  if (!has_thread_pools_) {
    throw Error(ErrorKind::invalid_argument,
                "use_per_session_threads is False, and there are no global thread pools: call "
                "set_global_thread_pool_sizes or configure before the first session, value or RunOptions");
  }
  if (generation_ != fork_generation()) {
    throw Error(ErrorKind::forked,
                "use_per_session_threads is False, but a forked process does not have the threads of the global thread "
                "pools: start workers with multiprocessing's 'spawn'");
  }
}

std::vector<std::string> OnnxRuntime::available_providers() const {
  std::vector<std::string> names = Ort::GetAvailableProviders();
  if (!cuda_plugin_.empty() && std::ranges::find(names, "CUDAExecutionProvider") == names.end()) {
    names.insert(names.begin(), "CUDAExecutionProvider");
  }
  return names;
}

std::string OnnxRuntime::build_info() const { return Ort::GetBuildInfoString(); }

}  // namespace ortmulti
