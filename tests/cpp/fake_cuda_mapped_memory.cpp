// Memory of the driver in host memory that is mapped to reserved addresses: a whole handle to a whole address. A
// mapping that fails to end is there as before; what else gives something back does so even where it fails. Memory that
// processes share is a file in memory, and read-only where the driver makes it so.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "fake_cuda_work.hpp"

namespace ortmulti::tests {
namespace {

using Work = FakeCuda::Work;

bool is_whole(std::size_t size) { return size != 0 && size % FakeCuda::granularity == 0; }

bool is_device(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE && location.id >= 0 && location.id < FakeCuda::state().devices;
}

bool is_usual(const CUmemAllocationProp& properties) {
  return properties.type == CU_MEM_ALLOCATION_TYPE_PINNED && is_device(properties.location);
}

std::shared_ptr<const int> closed_at_last(int descriptor) {
  return {new int(descriptor), [](const int* one) {
            close(*one);
            delete one;
          }};
}

// Throws std::bad_alloc.
void map_pages(const Reservation& reserved, int file) {
  const int kind = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  if (mmap(reserved.memory.get(), reserved.size, PROT_READ | PROT_WRITE, kind | MAP_FIXED, file, 0) == MAP_FAILED) {
    throw std::bad_alloc();
  }
}

/// The address that begins there and is as long; null where there is none.
Reservation* address_at(Work& work, CUdeviceptr address, std::size_t size) {
  const auto found = work.addresses.find(address);
  return found == work.addresses.end() || found->second.size != size ? nullptr : &found->second;
}

CUresult mem_get_allocation_granularity(std::size_t* granularity, const CUmemAllocationProp* properties,
                                        CUmemAllocationGranularity_flags /*kind*/) {
  *granularity = FakeCuda::granularity;
  const CUresult result = result_of("cuMemGetAllocationGranularity");
  return is_usual(*properties) ? result : CUDA_ERROR_INVALID_VALUE;
}

CUresult mem_address_reserve(CUdeviceptr* address, std::size_t size, std::size_t alignment, CUdeviceptr wanted,
                             unsigned long long flags) {
  if (const CUresult failed = result_of("cuMemAddressReserve"); failed != CUDA_SUCCESS) {
    return failed;
  }
  Work& work = Work::get();
  const Lock lock(work.mutex);
  if (!is_whole(size) || alignment != 0 || wanted != 0 || flags != 0) {
    return work.misuse(CUDA_ERROR_INVALID_VALUE, "an address is reserved of a size that is none");
  }
  HostMemory memory = host_memory(size);
  *address = device_address(memory);
  work.addresses.emplace(*address, Reservation{*address, size, std::move(memory)});
  return CUDA_SUCCESS;
}

CUresult mem_address_free(CUdeviceptr address, std::size_t size) {
  const CUresult result = result_of("cuMemAddressFree");
  Work& work = Work::get();
  const Lock lock(work.mutex);
  Reservation* reserved = address_at(work, address, size);
  if (reserved == nullptr) {
    return work.misuse(CUDA_ERROR_INVALID_VALUE, "an address is freed that is not reserved");
  }
  if (reserved->mapped != 0) {
    return work.misuse(CUDA_ERROR_INVALID_VALUE, "an address is freed that memory is mapped to");
  }
  if (work.in_use(reserved->memory.get(), size)) {  // noted when it was unmapped
    work.freed_too_early.push_back(std::move(reserved->memory));
  }
  work.addresses.erase(address);
  return result;
}

CUresult mem_create(CUmemGenericAllocationHandle* handle, std::size_t size, const CUmemAllocationProp* properties,
                    unsigned long long flags) {
  if (const CUresult failed = result_of("cuMemCreate"); failed != CUDA_SUCCESS) {
    return failed;
  }
  Work& work = Work::get();
  if (!is_whole(size) || !is_usual(*properties) || flags != 0) {
    const Lock lock(work.mutex);
    return work.misuse(CUDA_ERROR_INVALID_VALUE, "memory is created of a size or a place that is none");
  }
  const int device = properties->location.id;
  if (size > FakeCuda::state().free_bytes(device)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  std::shared_ptr<const int> file;
  if (properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    if (!FakeCuda::state().shareable) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    const int made = memfd_create("memory of a GPU", MFD_CLOEXEC);
    if (made < 0 || ftruncate(made, static_cast<off_t>(size)) != 0) {
      return CUDA_ERROR_OPERATING_SYSTEM;
    }
    file = closed_at_last(made);
  }
  const Lock lock(work.mutex);
  *handle = work.next_handle++;
  work.physical[*handle] = {device, size, std::move(file)};
  return CUDA_SUCCESS;
}

CUresult mem_export_to_shareable_handle(void* descriptor, CUmemGenericAllocationHandle handle,
                                        CUmemAllocationHandleType type, unsigned long long flags) {
  if (const CUresult failed = result_of("cuMemExportToShareableHandle"); failed != CUDA_SUCCESS) {
    return failed;
  }
  Work& work = Work::get();
  const Lock lock(work.mutex);
  const auto found = work.physical.find(handle);
  if (found == work.physical.end() || !found->second.file || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
      flags != 0) {
    return work.misuse(CUDA_ERROR_INVALID_VALUE, "memory is exported that is not shared");
  }
  const int copy = fcntl(*found->second.file, F_DUPFD_CLOEXEC, 0);
  *static_cast<int*>(descriptor) = copy;
  return copy < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

CUresult mem_import_from_shareable_handle(CUmemGenericAllocationHandle* handle, void* descriptor,
                                          CUmemAllocationHandleType type) {
  if (const CUresult failed = result_of("cuMemImportFromShareableHandle"); failed != CUDA_SUCCESS) {
    return failed;
  }
  const int file = static_cast<int>(reinterpret_cast<std::intptr_t>(descriptor));
  struct stat status{};
  const int copy = fcntl(file, F_DUPFD_CLOEXEC, 0);
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || copy < 0 || fstat(copy, &status) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Work& work = Work::get();
  const Lock lock(work.mutex);
  *handle = work.next_handle++;
  work.physical[*handle] = {FakeCuda::current(), static_cast<std::size_t>(status.st_size), closed_at_last(copy), true};
  return CUDA_SUCCESS;
}

CUresult mem_release(CUmemGenericAllocationHandle handle) {
  const CUresult result = result_of("cuMemRelease");
  Work& work = Work::get();
  const Lock lock(work.mutex);
  const auto found = work.physical.find(handle);
  if (found == work.physical.end() || !found->second.held) {
    return work.misuse(CUDA_ERROR_INVALID_VALUE, "memory is released that is not held");
  }
  found->second.held = false;
  if (!found->second.mapped) {
    work.physical.erase(found);
  }
  return result;
}

CUresult mem_map(CUdeviceptr address, std::size_t size, std::size_t offset, CUmemGenericAllocationHandle handle,
                 unsigned long long flags) {
  if (const CUresult failed = result_of("cuMemMap"); failed != CUDA_SUCCESS) {
    return failed;
  }
  Work& work = Work::get();
  const Lock lock(work.mutex);
  Reservation* reserved = address_at(work, address, size);
  const auto found = work.physical.find(handle);
  if (reserved == nullptr || found == work.physical.end() || !found->second.held || found->second.size != size ||
      offset != 0 || flags != 0) {
    return work.misuse(CUDA_ERROR_INVALID_VALUE, "memory is mapped that is none, or to an address that is none");
  }
  if (reserved->mapped != 0 || found->second.mapped) {
    return work.misuse(CUDA_ERROR_INVALID_VALUE, "memory is mapped twice");
  }
  reserved->mapped = handle;
  found->second.mapped = true;
  if (const auto& file = found->second.file) {
    map_pages(*reserved, *file);
  } else {
    std::memset(reserved->memory.get(), unwritten, size);
  }
  return CUDA_SUCCESS;
}

CUresult mem_unmap(CUdeviceptr address, std::size_t size) {
  if (const CUresult failed = result_of("cuMemUnmap"); failed != CUDA_SUCCESS) {
    return failed;
  }
  Work& work = Work::get();
  const Lock lock(work.mutex);
  Reservation* reserved = address_at(work, address, size);
  if (reserved == nullptr || reserved->mapped == 0) {
    return work.misuse(CUDA_ERROR_INVALID_VALUE, "memory is unmapped that is not mapped");
  }
  if (work.in_use(reserved->memory.get(), size)) {
    work.misuse(CUDA_SUCCESS, "memory is unmapped under a copy");
  }
  const auto found = work.physical.find(reserved->mapped);
  if (found->second.file) {
    map_pages(*reserved, -1);
  }
  found->second.mapped = false;
  if (!found->second.held) {
    work.physical.erase(found);
  }
  reserved->mapped = 0;
  reserved->access.clear();
  return CUDA_SUCCESS;
}

CUresult mem_set_access(CUdeviceptr address, std::size_t size, const CUmemAccessDesc* access, std::size_t count) {
  if (const CUresult failed = result_of("cuMemSetAccess"); failed != CUDA_SUCCESS) {
    return failed;
  }
  const FakeCuda& fake = FakeCuda::state();
  Work& work = Work::get();
  const Lock lock(work.mutex);
  Reservation* reserved = address_at(work, address, size);
  if (reserved == nullptr || reserved->mapped == 0) {
    return work.misuse(CUDA_ERROR_INVALID_VALUE, "access is set to memory that is not mapped");
  }
  const int owner = work.physical.at(reserved->mapped).device;
  const CUmemAccess_flags kind = count == 0 ? CU_MEM_ACCESS_FLAGS_PROT_NONE : access[0].flags;
  std::set<int> devices = reserved->access;
  for (std::size_t i = 0; i < count; ++i) {
    const int device = access[i].location.id;
    const bool reads = access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ;
    if (!is_device(access[i].location) || access[i].flags != kind ||
        (!reads && access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)) {
      return work.misuse(CUDA_ERROR_INVALID_VALUE, "access is set for what is no device");
    }
    const std::pair<int, int> pair{device, owner};
    if (device != owner && (!fake.peers || fake.unreachable.count(pair) + fake.refused_peers.count(pair) != 0)) {
      return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    }
    devices.insert(device);
  }
  reserved->access = std::move(devices);
  if (work.physical.at(reserved->mapped).file) {
    mprotect(reserved->memory.get(), size, kind == CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ : PROT_READ | PROT_WRITE);
  }
  return CUDA_SUCCESS;
}

}  // namespace

void add_mapped_memory(CudaDriver& driver) {
  driver.mem_get_allocation_granularity = mem_get_allocation_granularity;
  driver.mem_address_reserve = mem_address_reserve;
  driver.mem_address_free = mem_address_free;
  driver.mem_create = mem_create;
  driver.mem_release = mem_release;
  driver.mem_map = mem_map;
  driver.mem_unmap = mem_unmap;
  driver.mem_set_access = mem_set_access;
  driver.mem_export_to_shareable_handle = mem_export_to_shareable_handle;
  driver.mem_import_from_shareable_handle = mem_import_from_shareable_handle;
}

}  // namespace ortmulti::tests
