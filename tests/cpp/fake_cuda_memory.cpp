// Memory, copies and peer access of the driver in host memory. What gives something back does so even where it fails:
// CUDA reports errors of earlier work there.
#include <algorithm>
#include <cstring>

#include "fake_cuda_work.hpp"

namespace ortmulti::tests {
namespace {

using Work = FakeCuda::Work;

CUresult mem_alloc(CUdeviceptr* address, std::size_t size) {
  if (const CUresult failed = result_of("cuMemAlloc"); failed != CUDA_SUCCESS) {
    return failed;
  }
  const int device = FakeCuda::current();
  if (device < 0) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (size == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (size > FakeCuda::state().free_bytes(device)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Allocation allocation{device, size, host_memory(size)};
  std::memset(allocation.memory.get(), unwritten, size);
  *address = device_address(allocation.memory);
  Work& work = Work::get();
  const Lock lock(work.mutex);
  work.allocations.emplace(*address, std::move(allocation));
  return CUDA_SUCCESS;
}

CUresult mem_free(CUdeviceptr address) {
  const CUresult result = result_of("cuMemFree");
  Work& work = Work::get();
  const Lock lock(work.mutex);
  const auto found = work.allocations.find(address);
  if (found == work.allocations.end()) {
    return work.misuse(CUDA_ERROR_INVALID_VALUE, "memory is freed that is not allocated");
  }
  if (FakeCuda::current() < 0) {
    return work.misuse(CUDA_ERROR_INVALID_CONTEXT, "memory is freed without a context");
  }
  if (work.in_use(found->second.memory.get(), found->second.size)) {
    work.misuse(CUDA_SUCCESS, "memory is freed under a copy");
    work.freed_too_early.push_back(std::move(found->second.memory));
  }
  work.allocations.erase(found);
  return result;
}

CUresult mem_host_register(void* memory, std::size_t size, unsigned flags) {
  if (const CUresult failed = result_of("cuMemHostRegister"); failed != CUDA_SUCCESS) {
    return failed;
  }
  const auto* begin = static_cast<const unsigned char*>(memory);
  Work& work = Work::get();
  const Lock lock(work.mutex);
  if (FakeCuda::current() < 0) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (begin == nullptr || size == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (const auto& [other, registration] : work.registrations) {
    if (other < begin + size && begin < other + registration.size) {
      return work.misuse(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "host memory is registered twice");
    }
  }
  const bool portable = (flags & CU_MEMHOSTREGISTER_PORTABLE) != 0;
  work.registrations[begin] = {size, portable ? -1 : FakeCuda::current()};
  work.registered += size;
  work.peak_registered = std::max(work.peak_registered, work.registered);
  return CUDA_SUCCESS;
}

CUresult mem_host_unregister(void* memory) {
  const CUresult result = result_of("cuMemHostUnregister");
  Work& work = Work::get();
  const Lock lock(work.mutex);
  const auto found = work.registrations.find(static_cast<const unsigned char*>(memory));
  if (found == work.registrations.end()) {
    return work.misuse(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "host memory is unregistered that is not registered");
  }
  if (FakeCuda::current() < 0) {
    return work.misuse(CUDA_ERROR_INVALID_CONTEXT, "host memory is unregistered without a context");
  }
  if (work.in_use(found->first, found->second.size)) {
    work.misuse(CUDA_SUCCESS, "host memory is unregistered under a copy");
  }
  work.registered -= found->second.size;
  work.registrations.erase(found);
  return result;
}

CUresult memcpy_htod_async(CUdeviceptr to, const void* from, std::size_t size, CUstream stream) {
  if (const CUresult failed = result_of("cuMemcpyHtoDAsync"); failed != CUDA_SUCCESS) {
    return failed;
  }
  Work& work = Work::get();
  Lock lock(work.mutex);
  unsigned char* target = work.find(to, size, FakeCuda::current());
  return work.copy(Copy::Kind::to_device, stream, target, static_cast<const unsigned char*>(from), size, lock);
}

CUresult memcpy_dtoh_async(void* to, CUdeviceptr from, std::size_t size, CUstream stream) {
  if (const CUresult failed = result_of("cuMemcpyDtoHAsync"); failed != CUDA_SUCCESS) {
    return failed;
  }
  Work& work = Work::get();
  Lock lock(work.mutex);
  const unsigned char* source = work.find(from, size, FakeCuda::current());
  return work.copy(Copy::Kind::to_host, stream, static_cast<unsigned char*>(to), source, size, lock);
}

CUresult memcpy_peer_async(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                           std::size_t size, CUstream stream) {
  if (const CUresult failed = result_of("cuMemcpyPeerAsync"); failed != CUDA_SUCCESS) {
    return failed;
  }
  Work& work = Work::get();
  Lock lock(work.mutex);
  const int target = device_of(to_context);
  const int source = device_of(from_context);
  if (!work.reaches(target, source, from) && !work.reaches(source, target, to)) {
    ++FakeCuda::state().indirect_copies;
  }
  return work.copy(Copy::Kind::peer, stream, work.find(to, size, target), work.find(from, size, source), size, lock);
}

CUresult ctx_enable_peer_access(CUcontext peer, unsigned flags) {
  if (const CUresult failed = result_of("cuCtxEnablePeerAccess"); failed != CUDA_SUCCESS) {
    return failed;
  }
  FakeCuda& fake = FakeCuda::state();
  const std::pair<int, int> pair{FakeCuda::current(), device_of(peer)};
  if (pair.first < 0 || pair.second < 0 || pair.first == pair.second || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!fake.peers || fake.unreachable.count(pair) + fake.refused_peers.count(pair) != 0) {
    return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  }
  const Lock lock(fake.work->mutex);
  return fake.work->peers.insert(pair).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

}  // namespace

void add_memory(CudaDriver& driver) {
  driver.mem_alloc = mem_alloc;
  driver.mem_free = mem_free;
  driver.mem_host_register = mem_host_register;
  driver.mem_host_unregister = mem_host_unregister;
  driver.memcpy_htod_async = memcpy_htod_async;
  driver.memcpy_dtoh_async = memcpy_dtoh_async;
  driver.memcpy_peer_async = memcpy_peer_async;
  driver.ctx_enable_peer_access = ctx_enable_peer_access;
}

}  // namespace ortmulti::tests
