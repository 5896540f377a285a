#include "core/cuda/startup.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/fork.hpp"

namespace ortmulti {
namespace {

// Whether the first entry of CUDA_VISIBLE_DEVICES asks for a device; others, such as "" and "-1", hide all of them.
bool names_a_device(std::string_view visible) {
  return (!visible.empty() && visible.front() >= '0' && visible.front() <= '9') || visible.starts_with("GPU-") ||
         visible.starts_with("MIG-");
}

// Starts a thread for `purpose`. Throws Error if the thread cannot be started.
std::jthread start_thread(const char* purpose, auto body) {
  try {
    return std::jthread(std::move(body));
  } catch (const std::system_error& error) {
    throw Error(ErrorKind::runtime_exception, std::string("cannot start a thread for ") + purpose + ": " +
                                                  error.what() + ": allow this process more threads");
  }
}

}  // namespace

CudaStartup& CudaStartup::instance() {
  // Never destroyed: sessions in other threads may still ask at exit.
  static CudaStartup* startup = [] {
    std::string reason;
    const CudaDriver* driver = find_cuda_driver(&reason);
    return new CudaStartup(driver, reason);  // NOLINT(cppcoreguidelines-owning-memory)
  }();
  return *startup;
}

CudaStartup::CudaStartup(const CudaDriver* driver, std::string no_driver_reason, std::string sysfs)
    : driver_(driver), no_driver_reason_(std::move(no_driver_reason)), sysfs_(std::move(sysfs)) {}

void CudaStartup::begin_opening(std::vector<std::string> linked, std::vector<std::string> opened_later,
                                std::function<void()> then) {
  const std::lock_guard lock(libraries_mutex_);
  if (opening_.load()) {
    return;
  }
  opener_ =
      start_thread("the CUDA libraries", [this, linked = std::move(linked), opened_later = std::move(opened_later),
                                          then = std::move(then)] { open_libraries(linked, opened_later, then); });
  // Only now: others wait for the thread as soon as this is set.
  opening_generation_.store(fork_generation());
  opening_.store(true);
}

void CudaStartup::open_libraries(const std::vector<std::string>& linked, const std::vector<std::string>& opened_later,
                                 const std::function<void()>& then) {
  // Never closed: the provider resolves its needs by the names of what is open already.
  const std::int64_t start_ns = steady_now_ns();
  std::string problem;
  for (const std::string& path : linked) {
    if (dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
      const char* reason = dlerror();
      problem = "cannot open the CUDA library '" + path + "': " + (reason == nullptr ? "" : reason);
      break;
    }
  }
  const bool usable = problem.empty();
  remember({"open CUDA libraries", start_ns, steady_now_ns(), this_thread(), ""});
  {
    const std::lock_guard lock(libraries_mutex_);
    library_problem_ = std::move(problem);
    opened_ = true;
    linked_opened_.notify_all();
  }
  if (usable) {
    if (then) {
      const std::int64_t then_ns = steady_now_ns();
      try {
        then();
      } catch (...) {  // NOLINT(bugprone-empty-catch): whoever does the same in the foreground says what is wrong
      }
      remember({"open the CUDA provider", then_ns, steady_now_ns(), this_thread(), ""});
    }
    for (const std::string& path : opened_later) {
      static_cast<void>(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL));  // the provider says what it misses, if it does
    }
  }
}

void CudaStartup::wait_for_libraries(Timeline* timeline) {
  if (!opening_.load()) {
    return;
  }
  check_fork(opening_generation_.load());
  std::unique_lock lock(libraries_mutex_);
  if (!opened_) {
    const ScopedSpan span(timeline, "wait for CUDA libraries");
    linked_opened_.wait(lock, [this] { return opened_; });
  }
  hand_over(timeline);
  if (!library_problem_.empty()) {
    throw Error(ErrorKind::library, library_problem_);
  }
}

void CudaStartup::remember(Span span) {
  const std::lock_guard lock(spans_mutex_);
  spans_.push_back(std::move(span));
}

void CudaStartup::hand_over(Timeline* timeline) {
  if (timeline == nullptr) {
    return;
  }
  const std::lock_guard lock(spans_mutex_);
  for (Span& span : std::exchange(spans_, {})) {
    timeline->add(std::move(span));
  }
}

void CudaStartup::join() {
  // Joined without the locks. A forked child does not have these threads.
  std::jthread opener;
  if (opening_.load() && opening_generation_.load() == fork_generation()) {
    const std::lock_guard lock(libraries_mutex_);
    opener.swap(opener_);
  }
  std::jthread starter;
  if (starting_.load() && starting_generation_.load() == fork_generation()) {
    const std::lock_guard lock(contexts_mutex_);
    queued_.clear();  // those not begun are not needed any more
    all_queued_ = false;
    starter.swap(starter_);
  }
  queue_moves_.notify_all();
}

void CudaStartup::check_fork(unsigned generation) {
  if (generation != fork_generation()) {
    throw Error(ErrorKind::forked,
                "this process was forked after its parent had started CUDA, which CUDA does not support. Start "
                "workers with multiprocessing's 'spawn' or 'forkserver', or fork before the first use of a GPU");
  }
}

void CudaStartup::check(CUresult result, std::string_view what) const {
  if (result == CUDA_SUCCESS) {
    return;
  }
  const ErrorKind kind = result == CUDA_ERROR_OUT_OF_MEMORY ? ErrorKind::out_of_memory : ErrorKind::device;
  throw Error(kind, std::string(what) + " failed: " + driver_->describe(result));
}

void CudaStartup::initialize(Timeline* timeline) {
  if (started_.load()) {
    check_fork(started_generation_.load());
  }
  const std::lock_guard lock(initialize_mutex_);
  if (!initialized_ && driver_ != nullptr) {
    started_generation_.store(fork_generation());
    started_.store(true);
    const std::int64_t start_ns = steady_now_ns();
    initialize_result_ = driver_->init(0);
    remember({"cuInit", start_ns, steady_now_ns(), this_thread(), ""});
    if (initialize_result_ == CUDA_SUCCESS) {
      check(driver_->device_get_count(&device_count_), "counting CUDA devices");
    }
  }
  initialized_ = true;
  hand_over(timeline);
}

int CudaStartup::device_count(Timeline* timeline) {
  initialize(timeline);
  if (driver_ != nullptr && initialize_result_ == CUDA_SUCCESS) {
    return device_count_;
  }
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const bool no_device = driver_ == nullptr || initialize_result_ == CUDA_ERROR_NO_DEVICE;
  if (no_device && ((visible != nullptr && !names_a_device(visible)) || !has_nvidia_hardware(sysfs_))) {
    return 0;
  }
  throw Error(ErrorKind::device,
              "this machine has an NVIDIA GPU that CUDA cannot use: " +
                  (driver_ == nullptr ? no_driver_reason_ : "cuInit failed: " + driver_->describe(initialize_result_)) +
                  (visible == nullptr ? "" : " (CUDA_VISIBLE_DEVICES is '" + std::string(visible) + "')"));
}

CUdevice CudaStartup::handle(int device) {
  const int count = device_count();
  if (device < 0 || device >= count) {
    std::string found = count == 0 ? "there are none" : "there are " + std::to_string(count);
    if (count == 0 && driver_ == nullptr) {
      found += " (" + no_driver_reason_ + ")";
    }
    throw Error(ErrorKind::device, to_string(Device::cuda(device)) + " does not exist: of CUDA devices " + found);
  }
  CUdevice handle = 0;
  check(driver_->device_get(&handle, device), "opening " + to_string(Device::cuda(device)));
  return handle;
}

void CudaStartup::begin_contexts(const std::optional<std::vector<int>>& devices) {
  if (driver_ == nullptr) {
    return;
  }
  if (starting_.load()) {
    check_fork(starting_generation_.load());
  }
  const std::lock_guard lock(contexts_mutex_);
  std::deque<int> queued = queued_;
  for (const int device : devices.value_or(std::vector<int>())) {
    if (!has_context(device) && std::ranges::find(queued, device) == queued.end()) {
      queued.push_back(device);
    }
  }
  if (devices && queued.empty()) {
    return;
  }
  if (!starter_running_) {
    // The new thread waits for the lock. The one before has said under the lock that it takes nothing more: it is
    // joined.
    starter_ = start_thread("the CUDA contexts", [this] { create_queued_contexts(); });
    starting_generation_.store(fork_generation());
    starting_.store(true);
    starter_running_ = true;
  }
  // Only now: others wait for a queued context, which needs the thread.
  queued_ = std::move(queued);
  all_queued_ = all_queued_ || !devices;
  queue_moves_.notify_all();
}

const CudaDriver& CudaStartup::driver() const {
  if (driver_ == nullptr) {
    throw Error(ErrorKind::device, no_driver_reason_);
  }
  return *driver_;
}

CudaDeviceInfo CudaStartup::describe(int device) {
  const CUdevice cuda_device = handle(device);
  CudaDeviceInfo info;
  info.index = device;
  const std::string what = "describing " + to_string(Device::cuda(device));

  std::array<char, 256> text{};
  check(driver_->device_get_name(text.data(), static_cast<int>(text.size()), cuda_device), what);
  info.name = text.data();
  check(driver_->device_get_pci_bus_id(text.data(), static_cast<int>(text.size()), cuda_device), what);
  info.pci_bus_id = text.data();

  CUuuid uuid{};
  check(driver_->device_get_uuid(&uuid, cuda_device), what);
  info.uuid = "GPU-";
  for (std::size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) {
      info.uuid += '-';
    }
    constexpr const char* digits = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    info.uuid += digits[byte >> 4U];
    info.uuid += digits[byte & 15U];
  }

  std::size_t bytes = 0;
  check(driver_->device_total_mem(&bytes, cuda_device), what);
  info.total_memory = bytes;
  check(driver_->device_get_attribute(&info.compute_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, cuda_device),
        what);
  check(driver_->device_get_attribute(&info.compute_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, cuda_device),
        what);
  return info;
}

bool CudaStartup::can_access_peer(int device, int peer) {
  int can = 0;
  check(driver_->device_can_access_peer(&can, handle(device), handle(peer)),
        "asking for peer access from " + to_string(Device::cuda(device)) + " to " + to_string(Device::cuda(peer)));
  return can != 0;
}

CudaStartup::Memory CudaStartup::memory(int device) {
  make_current(device);
  Memory memory;
  check(driver_->mem_get_info(&memory.free, &memory.total),
        "asking for the free memory of " + to_string(Device::cuda(device)));
  return memory;
}

void CudaStartup::trim_graph_memory(int device) noexcept {
  try {
    static_cast<void>(driver().device_graph_mem_trim(handle(device)));
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): a device that is lost
  }
}

std::optional<int> CudaStartup::driver_version() const {
  if (driver_ == nullptr) {
    return std::nullopt;
  }
  int version = 0;
  check(driver_->driver_get_version(&version), "asking for the driver's version");
  return version;
}

}  // namespace ortmulti
