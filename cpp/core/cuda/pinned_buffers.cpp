#include "core/cuda/pinned_buffers.hpp"

#include <sys/mman.h>

#include "core/base/error.hpp"
#include "core/cuda/graph_capture.hpp"

namespace ortmulti {
namespace {

constexpr std::uint64_t huge_page = 2U << 20U;

}  // namespace

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
    const CudaUse use;
    static_cast<void>(driver_->mem_host_unregister(begin_));
  }
  munmap(mapping_, mapping_bytes_);
}

void PinnedBuffers::pin(CudaStartup& startup, const std::string& device) {
  const CudaUse use;
  const CudaDriver& driver = startup.driver();
  startup.check(driver.mem_host_register(begin_, bytes_, CU_MEMHOSTREGISTER_PORTABLE),
                "pinning host memory for " + device);
  driver_ = &driver;
}

}  // namespace ortmulti
