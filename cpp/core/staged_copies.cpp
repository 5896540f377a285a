#include "core/staged_copies.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/device.hpp"

namespace ortmulti {
namespace {

CUdeviceptr address_of(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

}  // namespace

StagedCopies::StagedCopies(CudaStartup& startup, int device)
    : startup_(startup), device_(device), driver_(startup.driver()), buffers_(chunk, chunks) {
  try {
    buffers_.pin(startup, to_string(Device::cuda(device)));
    check(driver_.stream_create(&stream_, CU_STREAM_NON_BLOCKING));
    for (CUevent& event : copied_) {
      check(driver_.event_create(&event, CU_EVENT_DISABLE_TIMING));
    }
  } catch (...) {
    free();
    throw;
  }
}

StagedCopies::~StagedCopies() { free(); }

void StagedCopies::free() noexcept {
  for (CUevent event : copied_) {
    if (event != nullptr) {
      static_cast<void>(driver_.event_destroy(event));
    }
  }
  if (stream_ != nullptr) {
    static_cast<void>(driver_.stream_synchronize(stream_));
    static_cast<void>(driver_.stream_destroy(stream_));
  }
}

void StagedCopies::check(CUresult result) const {
  if (result != CUDA_SUCCESS) {
    startup_.check(result, "copying a request's inputs and outputs on " + to_string(Device::cuda(device_)));
  }
}

void StagedCopies::from_host(void* target, const void* source, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes; ++next_) {
    const std::size_t size = std::min(chunk, bytes - done);
    CUevent copied = copied_.at(next_ % chunks);
    check(driver_.event_synchronize(copied));  // one that was never recorded counts as reached
    std::memcpy(buffer(next_), static_cast<const unsigned char*>(source) + done, size);
    check(driver_.memcpy_htod_async(address_of(target) + done, buffer(next_), size, stream_));
    check(driver_.event_record(copied, stream_));
    done += size;
  }
}

void StagedCopies::to_host(void* target, const void* source, std::size_t bytes) {
  const std::size_t count = (bytes + chunk - 1) / chunk;
  const std::size_t first = next_;
  const auto size_of = [&](std::size_t index) { return std::min(chunk, bytes - index * chunk); };
  const auto take = [&](std::size_t index) {
    check(driver_.event_synchronize(copied_.at((first + index) % chunks)));
    std::memcpy(static_cast<unsigned char*>(target) + index * chunk, buffer(first + index), size_of(index));
  };
  // All copies are on one stream, so that a buffer is written to only after what was sent from it before.
  for (std::size_t i = 0; i < count; ++i, ++next_) {
    if (i >= chunks) {
      take(i - chunks);
    }
    check(driver_.memcpy_dtoh_async(buffer(next_), address_of(source) + i * chunk, size_of(i), stream_));
    check(driver_.event_record(copied_.at(next_ % chunks), stream_));
  }
  for (std::size_t i = count > chunks ? count - chunks : 0; i < count; ++i) {
    take(i);
  }
}

void StagedCopies::from_device(void* target, int source_device, const void* source, std::size_t bytes) {
  CUcontext here = startup_.make_current(device_);
  CUcontext there = here;
  if (source_device != device_) {
    there = startup_.make_current(source_device);
    static_cast<void>(startup_.make_current(device_));
  }
  check(driver_.memcpy_peer_async(address_of(target), here, address_of(source), there, bytes, stream_));
}

void StagedCopies::wait() { check(driver_.stream_synchronize(stream_)); }

}  // namespace ortmulti
