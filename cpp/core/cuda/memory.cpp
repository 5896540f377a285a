#include "core/cuda/memory.hpp"

#include <sys/mman.h>

#include <algorithm>

#include "core/base/error.hpp"
#include "core/base/fork.hpp"
#include "core/cuda/capture_lock.hpp"

namespace ortmulti {
namespace {

constexpr std::size_t smallest = 256;  // CUDA refuses to allocate nothing

CUdeviceptr address_of(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

// The default stream waits for other blocking streams, those of PyTorch's default stream among them.
constexpr auto* default_stream = static_cast<CUstream>(nullptr);

constexpr std::uint64_t huge_page = 2U << 20U;

}  // namespace

ScopedContext::ScopedContext(CudaStartup& startup, int device)
    : startup_(startup), context_(startup.context(device)), before_(startup.exchange_current(context_, device)) {}

ScopedContext::~ScopedContext() {
  if (before_ != context_) {
    static_cast<void>(startup_.driver().ctx_set_current(before_));
  }
}

CudaMemory::CudaMemory(CudaStartup& startup, int device, std::size_t bytes, const std::string& purpose)
    : startup_(startup), generation_(fork_generation()), context_(startup.make_current(device)) {
  const std::string name = to_string(Device::cuda(device));
  const CaptureLock::Shared use;
  const CudaDriver& driver = startup_.driver();
  std::size_t free = 0;
  std::size_t total = 0;
  startup_.check(driver.mem_get_info(&free, &total), "asking for the free memory of " + name);
  const auto out_of_memory = [&](const std::string& detail) {
    return Error(ErrorKind::out_of_memory, purpose + " " + megabytes(bytes) + " on " + name + ", which has " +
                                               megabytes(free) + " free of " + megabytes(total) + detail);
  };
  if (bytes > free) {
    throw out_of_memory("");
  }
  const CUresult result = driver.mem_alloc(&address_, std::max(bytes, smallest));
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    throw out_of_memory(": " + driver.describe(result));
  }
  startup_.check(result, "allocating memory on " + name);
}

CudaMemory::~CudaMemory() {
  if (generation_ != fork_generation()) {
    return;  // it is the parent's
  }
  const CaptureLock::Shared use;
  const CudaDriver& driver = startup_.driver();
  CUcontext before = nullptr;
  static_cast<void>(driver.ctx_get_current(&before));
  // Fails where the driver has shut down, which freed it.
  if (driver.ctx_set_current(context_) == CUDA_SUCCESS) {
    static_cast<void>(driver.mem_free(address_));
    static_cast<void>(driver.ctx_set_current(before));
  }
}

void copy_to_device(CudaStartup& startup, int device, void* target, const void* source, std::size_t bytes) {
  const CaptureLock::Shared use;
  const ScopedContext current(startup, device);
  const CudaDriver& driver = startup.driver();
  const std::string what = "copying to " + to_string(Device::cuda(device));
  startup.check(driver.memcpy_htod_async(address_of(target), source, bytes, default_stream), what);
  startup.check(driver.stream_synchronize(default_stream), what);
}

void copy_to_host(CudaStartup& startup, int device, void* target, const void* source, std::size_t bytes) {
  const CaptureLock::Shared use;
  const ScopedContext current(startup, device);
  const CudaDriver& driver = startup.driver();
  const std::string what = "copying from " + to_string(Device::cuda(device));
  startup.check(driver.memcpy_dtoh_async(target, address_of(source), bytes, default_stream), what);
  startup.check(driver.stream_synchronize(default_stream), what);
}

void copy_between_devices(CudaStartup& startup, int target_device, void* target, int source_device, const void* source,
                          std::size_t bytes) {
  const CaptureLock::Shared use;
  // What is still being written on the source's device is not in the order of the target's stream.
  wait_for_default_stream(startup, source_device);
  auto* const from = startup.context(source_device);
  const ScopedContext to(startup, target_device);
  const CudaDriver& driver = startup.driver();
  const std::string what =
      "copying from " + to_string(Device::cuda(source_device)) + " to " + to_string(Device::cuda(target_device));
  startup.check(
      driver.memcpy_peer_async(address_of(target), to.context(), address_of(source), from, bytes, default_stream),
      what);
  startup.check(driver.stream_synchronize(default_stream), what);
}

void wait_for_default_stream(CudaStartup& startup, int device) {
  const CaptureLock::Shared use;
  const ScopedContext current(startup, device);
  startup.check(startup.driver().stream_synchronize(default_stream), "waiting for " + to_string(Device::cuda(device)));
}

PinnedBuffers::PinnedBuffers(std::uint64_t each, int count)
    : each_((each + huge_page - 1) / huge_page * huge_page),
      // One huge page more than is used, to begin at the boundary of one.
      mapping_bytes_(each_ * static_cast<std::uint64_t>(count) + huge_page),
      bytes_(each_ * static_cast<std::uint64_t>(count)) {
  mapping_ = mmap(nullptr, mapping_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED) {
    throw Error(ErrorKind::out_of_memory, "no memory for buffers of " + megabytes(bytes_));
  }
  const auto address = reinterpret_cast<std::uintptr_t>(mapping_);
  begin_ = static_cast<unsigned char*>(mapping_) + (huge_page - address % huge_page) % huge_page;
  static_cast<void>(madvise(begin_, bytes_, MADV_HUGEPAGE));
  static_cast<void>(madvise(begin_, bytes_, MADV_DONTFORK));  // a child could not use what the driver pinned
  for (std::uint64_t at = 0; at < bytes_; at += 4096) {
    begin_[at] = 0;
  }
}

PinnedBuffers::~PinnedBuffers() {
  if (driver_ != nullptr) {
    const CaptureLock::Shared use;
    static_cast<void>(driver_->mem_host_unregister(begin_));
  }
  munmap(mapping_, mapping_bytes_);
}

void PinnedBuffers::pin(CudaStartup& startup, const std::string& device) {
  const CaptureLock::Shared use;
  const CudaDriver& driver = startup.driver();
  startup.check(driver.mem_host_register(begin_, bytes_, CU_MEMHOSTREGISTER_PORTABLE),
                "pinning host memory for " + device);
  driver_ = &driver;
}

}  // namespace ortmulti
