#include "core/cuda/memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/fork.hpp"
#include "core/cuda/device_sync_guard.hpp"
#include "core/memory/device_memory.hpp"

namespace ortmulti {
namespace {

constexpr std::size_t smallest = 256;  // CUDA refuses to allocate nothing

// The default stream waits for other blocking streams, those of PyTorch's default stream among them.
constexpr auto* default_stream = static_cast<CUstream>(nullptr);

constexpr std::uint64_t huge_page = 2U << 20U;

std::uint64_t in_huge_pages(std::uint64_t bytes) { return (bytes + huge_page - 1) / huge_page * huge_page; }

// Waits for the last operation on the default stream.
void finish(CudaStartup& startup, CUresult asked, const std::string& what) {
  startup.check(asked, what);
  startup.check(startup.driver().stream_synchronize(default_stream), what);
}

CUmemLocation location_of(int device) {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return location;
}

}  // namespace

ScopedContext::ScopedContext(CudaStartup& startup, int device)
    : startup_(startup), context_(startup.context(device)), before_(startup.exchange_current(context_, device)) {
  mode_.emplace(startup.driver());
}

ScopedContext::ScopedContext(CudaStartup& startup, int device, std::nothrow_t /*unused*/) noexcept : startup_(startup) {
  try {
    auto* const wanted = startup.context(device);
    before_ = startup.exchange_current(wanted, device);
    context_ = wanted;
    mode_.emplace(startup.driver());
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): see above
  }
}

ScopedContext::~ScopedContext() {
  if (before_ != context_) {
    static_cast<void>(startup_.driver().ctx_set_current(before_));
  }
}

CudaMemory::CudaMemory(CudaStartup& startup, int device, std::size_t bytes, Purpose purpose, Address address,
                       const Descriptor* other)
    : startup_(startup),
      device_(device),
      bytes_(std::max(bytes, smallest)),
      purpose_(purpose),
      generation_(fork_generation()),
      context_(startup.make_current(device)),
      kind_(address) {
  const MindsNoCaptures mode(startup.driver());
  if (address != Address::plain) {
    reserve();
  }
  if (other != nullptr && !stable()) {
    throw Error(ErrorKind::device, to_string(Device::cuda(device_)) + " has no memory that processes share");
  }
  if (stable()) {
    try {
      take(other);
    } catch (...) {
      static_cast<void>(startup_.driver().mem_address_free(address_, reserved_));
      throw;
    }
    return;
  }
  const Device on = Device::cuda(device_);
  with_retries({device_memory::lack(on)}, [this] {
    check_free();
    check_allocated(startup_.driver().mem_alloc(&address_, bytes_));
  });
  count(static_cast<std::int64_t>(bytes_));
}

void CudaMemory::count(std::int64_t bytes) noexcept {
  taken_ += static_cast<std::size_t>(bytes);
  device_memory::count(Device::cuda(device_), purpose_.use, bytes);
}

void CudaMemory::check_allocated(CUresult result) const {
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    throw_out_of_memory(": " + startup_.driver().describe(result));
  }
  startup_.check(result, "allocating memory on " + to_string(Device::cuda(device_)));
}

void CudaMemory::throw_out_of_memory(const std::string& detail) const {
  const CudaStartup::Memory memory = startup_.memory(device_);
  throw Error(ErrorKind::out_of_memory, std::string(purpose_.text) + " " + megabytes(bytes_) + " on " +
                                            to_string(Device::cuda(device_)) + ", which has " + megabytes(memory.free) +
                                            " free of " + megabytes(memory.total) + detail);
}

void CudaMemory::check_free() const {
  if (bytes_ > startup_.memory(device_).free) {
    throw_out_of_memory("");
  }
}

CUmemAllocationProp CudaMemory::properties() const {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = location_of(device_);
  if (kind_ == Address::shared) {
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  }
  return properties;
}

// If the driver has no stable addresses, plain memory is used, which is no error.
void CudaMemory::reserve() {
  const CudaDriver& driver = startup_.driver();
  int supported = 0;
  CUdevice handle = 0;
  if (driver.mem_map == nullptr || driver.device_get(&handle, device_) != CUDA_SUCCESS ||
      driver.device_get_attribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, handle) !=
          CUDA_SUCCESS ||
      supported == 0) {
    return;
  }
  int exported = 0;
  if (kind_ == Address::shared &&
      (driver.device_get_attribute(&exported, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                                   handle) != CUDA_SUCCESS ||
       exported == 0)) {
    kind_ = Address::stable;
  }
  std::size_t granularity = 0;
  const CUmemAllocationProp wanted = properties();
  if (driver.mem_get_allocation_granularity(&granularity, &wanted, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) !=
          CUDA_SUCCESS ||
      granularity == 0) {
    return;
  }
  access_ = {{wanted.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
  for (int peer = 0; peer < startup_.device_count(); ++peer) {
    try {
      if (peer != device_ && startup_.can_access_peer(peer, device_)) {
        access_.push_back({location_of(peer), CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
      }
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the driver copies by way of the host
    }
  }
  const std::size_t size = (bytes_ + granularity - 1) / granularity * granularity;
  if (driver.mem_address_reserve(&address_, size, 0, 0, 0) == CUDA_SUCCESS) {
    reserved_ = size;
  }
}

void CudaMemory::take(const Descriptor* other) {
  if (allocation_ != 0) {
    return;
  }
  const ScopedContext current(startup_, device_);
  if (other != nullptr) {
    map(other);
  } else {
    const Device on = Device::cuda(device_);
    with_retries({device_memory::lack(on)}, [this] { map(nullptr); });
  }
}

CUresult CudaMemory::set_access(CUmemAccess_flags flags) {
  for (CUmemAccessDesc& each : access_) {
    each.flags = flags;
  }
  const CudaDriver& driver = startup_.driver();
  const CUresult result = driver.mem_set_access(address_, reserved_, access_.data(), access_.size());
  // A peer can be refused after all. Copies to it then go by the host, which is slower.
  return result == CUDA_SUCCESS || access_.size() == 1 ? result
                                                       : driver.mem_set_access(address_, reserved_, access_.data(), 1);
}

void CudaMemory::map(const Descriptor* other) {
  const CudaDriver& driver = startup_.driver();
  CUmemGenericAllocationHandle allocation = 0;
  if (other != nullptr) {
    // The driver takes a descriptor in the place of a pointer.
    void* const descriptor = to_pointer(static_cast<CUdeviceptr>(other->get()));
    startup_.check(
        driver.mem_import_from_shareable_handle(&allocation, descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        "taking another process's memory of " + to_string(Device::cuda(device_)));
  } else {
    check_free();
    CUmemAllocationProp wanted = properties();
    CUresult result = driver.mem_create(&allocation, reserved_, &wanted, 0);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY && kind_ == Address::shared) {
      kind_ = Address::stable;  // in some sandboxes
      wanted = properties();
      result = driver.mem_create(&allocation, reserved_, &wanted, 0);
    }
    check_allocated(result);
  }
  CUresult result = driver.mem_map(address_, reserved_, 0, allocation, 0);
  if (result == CUDA_SUCCESS) {
    result = set_access(other != nullptr ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    if (result != CUDA_SUCCESS) {
      static_cast<void>(driver.mem_unmap(address_, reserved_));
    }
  }
  if (result != CUDA_SUCCESS) {
    static_cast<void>(driver.mem_release(allocation));
  }
  check_allocated(result);
  allocation_ = allocation;
  if (other == nullptr) {  // else it is the other's
    count(static_cast<std::int64_t>(reserved_));
  }
}

Descriptor CudaMemory::share() {
  const std::string name = to_string(Device::cuda(device_));
  if (kind_ != Address::shared || !stable() || allocation_ == 0) {
    throw Error(ErrorKind::device, name + " has no memory that processes share");
  }
  const ScopedContext current(startup_, device_);
  int descriptor = -1;
  startup_.check(startup_.driver().mem_export_to_shareable_handle(&descriptor, allocation_,
                                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                 "sharing memory of " + name);
  Descriptor shared(descriptor);
  startup_.check(set_access(CU_MEM_ACCESS_FLAGS_PROT_READ), "protecting shared memory of " + name);
  return shared;
}

void CudaMemory::give_back() {
  if (allocation_ == 0) {
    return;
  }
  const DeviceSyncGuard guard(Device::cuda(device_), DeviceSyncGuard::Work::waits_for_device);
  const ScopedContext current(startup_, device_);
  const CudaDriver& driver = startup_.driver();
  const std::string name = to_string(Device::cuda(device_));
  startup_.check(driver.ctx_synchronize(), "waiting for " + name);
  startup_.check(driver.mem_unmap(address_, reserved_), "giving memory of " + name + " back");
  // Nothing refers to it any more; what fails from here on cannot keep it.
  static_cast<void>(driver.mem_release(allocation_));
  allocation_ = 0;
  count(-static_cast<std::int64_t>(taken()));
}

CudaMemory::~CudaMemory() {
  if (generation_ != fork_generation()) {
    return;  // it is the parent's
  }
  const ScopedContext current(startup_, device_, std::nothrow);
  if (current.context() == nullptr) {
    return;  // the driver has shut down, which freed it
  }
  const CudaDriver& driver = startup_.driver();
  if (!stable()) {
    static_cast<void>(driver.mem_free(address_));
    count(-static_cast<std::int64_t>(bytes_));
    return;
  }
  if (allocation_ != 0) {
    const DeviceSyncGuard guard(Device::cuda(device_), DeviceSyncGuard::Work::waits_for_device);
    static_cast<void>(driver.ctx_synchronize());  // as cuMemFree does
    static_cast<void>(driver.mem_unmap(address_, reserved_));
    static_cast<void>(driver.mem_release(allocation_));
    count(-static_cast<std::int64_t>(taken()));
  }
  static_cast<void>(driver.mem_address_free(address_, reserved_));
}

void copy_to_device(CudaStartup& startup, int device, void* target, const void* source, std::size_t bytes) {
  const ScopedContext current(startup, device);
  finish(startup, startup.driver().memcpy_htod_async(to_address(target), source, bytes, default_stream),
         "copying to " + to_string(Device::cuda(device)));
}

void copy_to_host(CudaStartup& startup, int device, void* target, const void* source, std::size_t bytes) {
  const ScopedContext current(startup, device);
  finish(startup, startup.driver().memcpy_dtoh_async(target, to_address(source), bytes, default_stream),
         "copying from " + to_string(Device::cuda(device)));
}

void copy_between_devices(CudaStartup& startup, int target_device, void* target, int source_device, const void* source,
                          std::size_t bytes) {
  // What is still being written on the source's device is not in the order of the target's stream.
  wait_for_default_stream(startup, source_device);
  auto* const from = startup.context(source_device);
  const ScopedContext to(startup, target_device);
  finish(startup,
         startup.driver().memcpy_peer_async(to_address(target), to.context(), to_address(source), from, bytes,
                                            default_stream),
         "copying from " + to_string(Device::cuda(source_device)) + " to " + to_string(Device::cuda(target_device)));
}

void wait_for_default_stream(CudaStartup& startup, int device) {
  const ScopedContext current(startup, device);
  startup.check(startup.driver().stream_synchronize(default_stream), "waiting for " + to_string(Device::cuda(device)));
}

bool PinnedBuffers::are(std::uint64_t each, int count) const noexcept {
  return each_ == in_huge_pages(each) && bytes_ == each_ * static_cast<std::uint64_t>(count);
}

PinnedBuffers::PinnedBuffers(std::uint64_t each, int count)
    : each_(in_huge_pages(each)),
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
    static_cast<void>(driver_->mem_host_unregister(begin_));
  }
  munmap(mapping_, mapping_bytes_);
}

void PinnedBuffers::pin(CudaStartup& startup, const std::string& device) {
  const CudaDriver& driver = startup.driver();
  startup.check(driver.mem_host_register(begin_, bytes_, CU_MEMHOSTREGISTER_PORTABLE),
                "pinning host memory for " + device);
  driver_ = &driver;
}

}  // namespace ortmulti
