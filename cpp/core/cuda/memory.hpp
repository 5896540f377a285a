#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "core/base/descriptor.hpp"
#include "core/cuda/startup.hpp"
#include "core/memory/device_memory.hpp"

namespace ortmulti {

// The driver's addresses are numbers.
inline void* to_pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }  // NOLINT(*-no-int-to-ptr)
inline CUdeviceptr to_address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

/// For its lifetime captures of other threads do not concern the calling one (CU_STREAM_CAPTURE_MODE_THREAD_LOCAL):
/// beside one of the default mode, as PyTorch's are, an allocation, a wait for a stream and the like would fail with
/// CUDA error 900, and so would the capture.
class MindsNoCaptures : NonCopyable {
 public:
  explicit MindsNoCaptures(const CudaDriver& driver) noexcept : driver_(driver) { exchange(); }
  ~MindsNoCaptures() { exchange(); }

 private:
  void exchange() noexcept { static_cast<void>(driver_.thread_capture_mode(&mode_)); }

  const CudaDriver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
};

/// Has a device's context current in the calling thread for its lifetime, and then the one that was before. Costs
/// nothing but two questions to the driver if it is current already. Minds no captures meanwhile.
class ScopedContext : NonCopyable {
 public:
  ScopedContext(CudaStartup& startup, int device);
  /// For destructors: leaves the current context as it is where the device is lost, or the driver has shut down.
  ScopedContext(CudaStartup& startup, int device, std::nothrow_t /*unused*/) noexcept;
  ~ScopedContext();

  CUcontext context() const noexcept { return context_; }

 private:
  CudaStartup& startup_;
  CUcontext context_ = nullptr;
  CUcontext before_ = nullptr;
  std::optional<MindsNoCaptures> mode_;  // once there is a context
};

/// An allocation of a GPU's memory, in the device's primary context.
class CudaMemory : NonCopyable {
 public:
  /// `stable`: an address whose memory can be given back and taken again, where the driver and the device have that;
  /// every device that can reach this one may copy from it. `shared`: and other processes may have the memory.
  enum class Address { plain, stable, shared };
  /// What it is for: as an error says it ("the weights take"), and as it is counted.
  struct Purpose {
    // NOLINTNEXTLINE(google-explicit-constructor): most is for buffers
    Purpose(const char* what, MemoryUse as = MemoryUse::buffers) noexcept : text(what), use(as) {}
    const char* text;
    MemoryUse use;
  };

  /// Allocates, with the device's context current in the calling thread afterwards. Throws Error with
  /// ErrorKind::out_of_memory, which says how much the purpose takes and how much there is, before
  /// anything is allocated where that cannot suffice. `other`: as for take().
  CudaMemory(CudaStartup& startup, int device, std::size_t bytes, Purpose purpose, Address address = Address::plain,
             const Descriptor* other = nullptr);
  ~CudaMemory();

  CUcontext context() const noexcept { return context_; }
  std::size_t bytes() const noexcept { return bytes_; }
  CUdeviceptr address() const noexcept { return address_; }
  /// Bytes of the device that it has now; 0 where it is another's memory.
  std::size_t taken() const noexcept { return taken_; }

  bool stable() const noexcept { return reserved_ > 0; }
  /// Gives the memory of a stable address back, after the device's work is done. An access to the address then is fatal
  /// for the process. Does nothing if the memory is not there. If it throws Error, the memory is there as before.
  void give_back();
  /// Takes memory again, with no particular contents, if it is not there. Throws Error, with nothing taken, as the
  /// constructor does. `other`: a shared address takes this memory, of another process or another object, to be read.
  void take(const Descriptor* other = nullptr);
  /// The bytes that the memory of a stable address takes.
  std::size_t mapped_bytes() const noexcept { return reserved_; }
  /// Returns a descriptor by which others may take the memory of a shared address. The memory must be there, and nobody
  /// writes to it from now on. Throws Error.
  Descriptor share();

 private:
  void count(std::int64_t bytes) noexcept;
  /// Throws where less is free, with `detail` where the driver refused.
  void check_free() const;
  void check_allocated(CUresult result) const;
  [[noreturn]] void throw_out_of_memory(const std::string& detail) const;
  void reserve();
  void map(const Descriptor* other);
  CUmemAllocationProp properties() const;
  CUresult set_access(CUmemAccess_flags flags);

  CudaStartup& startup_;
  int device_;
  std::size_t bytes_;
  Purpose purpose_;
  unsigned generation_;
  CUcontext context_;
  CUdeviceptr address_ = 0;
  Address kind_;
  std::vector<CUmemAccessDesc> access_;  // to a stable address, the device's own first
  std::size_t reserved_ = 0;             // of a stable address
  std::atomic<std::size_t> taken_{0};
  CUmemGenericAllocationHandle allocation_ = 0;  // what is mapped there
};

/// Copies that are done on return, behind all that was asked of the device's default stream before. They leave the
/// calling thread's context as it was. Throw Error; with ErrorKind::forked in a child of the process that started CUDA.
void copy_to_device(CudaStartup& startup, int device, void* target, const void* source, std::size_t bytes);
void copy_to_host(CudaStartup& startup, int device, void* target, const void* source, std::size_t bytes);
void copy_between_devices(CudaStartup& startup, int target_device, void* target, int source_device, const void* source,
                          std::size_t bytes);
void wait_for_default_stream(CudaStartup& startup, int device);

/// Buffers of one thread from which a GPU copies by itself: anonymous memory, in huge pages where there are any, which
/// cost little to pin.
class PinnedBuffers : NonCopyable {
 public:
  /// `count` buffers of at least `each` bytes, touched by this thread so that the pages are near it. Throws Error with
  /// ErrorKind::out_of_memory.
  PinnedBuffers(std::uint64_t each, int count);
  ~PinnedBuffers();  ///< With a context current where they were pinned, and no copy from them under way.

  /// Pins them for every device; `device` is that whose context is current, for messages.
  void pin(CudaStartup& startup, const std::string& device);
  bool pinned() const noexcept { return driver_ != nullptr; }
  /// Whether a new one with these arguments would have the same size.
  bool are(std::uint64_t each, int count) const noexcept;
  unsigned char* operator[](int index) const { return begin_ + each_ * static_cast<std::uint64_t>(index); }

 private:
  std::uint64_t each_;
  void* mapping_ = nullptr;
  std::uint64_t mapping_bytes_ = 0;
  unsigned char* begin_ = nullptr;
  std::uint64_t bytes_ = 0;
  const CudaDriver* driver_ = nullptr;  // once pinned
};

}  // namespace ortmulti
