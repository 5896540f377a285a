#pragma once

#include <cstddef>
#include <string>

#include "core/cuda/startup.hpp"

namespace ortmulti {

/// Has a device's context current in the calling thread for its lifetime, and then the one that was before.
class ScopedContext {
 public:
  ScopedContext(CudaStartup& startup, int device);
  ~ScopedContext();
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;

  CUcontext context() const noexcept { return context_; }

 private:
  CudaStartup& startup_;
  CUcontext before_;
  CUcontext context_;
};

/// An allocation of a GPU's memory, in the device's primary context.
class CudaMemory {
 public:
  /// Allocates, with the device's context current in the calling thread afterwards. Throws Error with
  /// ErrorKind::out_of_memory, which says what `purpose` takes ("the weights take ...") and how much there is, before
  /// anything is allocated where that cannot suffice.
  CudaMemory(CudaStartup& startup, int device, std::size_t bytes, const std::string& purpose);
  ~CudaMemory();
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  CUcontext context() const noexcept { return context_; }
  CUdeviceptr address() const noexcept { return address_; }

 private:
  CudaStartup& startup_;
  unsigned generation_;
  CUcontext context_;
  CUdeviceptr address_ = 0;
};

/// Copies that are done on return, behind all that was asked of the device's default stream before. They leave the
/// calling thread's context as it was. Throw Error; with ErrorKind::forked in a child of the process that started CUDA.
void copy_to_device(CudaStartup& startup, int device, void* target, const void* source, std::size_t bytes);
void copy_to_host(CudaStartup& startup, int device, void* target, const void* source, std::size_t bytes);
void copy_between_devices(CudaStartup& startup, int target_device, void* target, int source_device, const void* source,
                          std::size_t bytes);
/// Waits for what was asked of the device's default stream.
void wait_for_default_stream(CudaStartup& startup, int device);

}  // namespace ortmulti
