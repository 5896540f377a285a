// Streams and events of the driver in host memory. What gives something back or waits does so even where it fails: CUDA
// reports errors of earlier work there.
#include "fake_cuda_work.hpp"

namespace ortmulti::tests {
namespace {

using Work = FakeCuda::Work;

CUresult stream_create(CUstream* stream, unsigned /*flags*/) {
  if (const CUresult failed = result_of("cuStreamCreate"); failed != CUDA_SUCCESS) {
    return failed;
  }
  if (FakeCuda::current() < 0) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  Work& work = Work::get();
  const Lock lock(work.mutex);
  *stream = work.add(work.begin_stream(FakeCuda::current()));
  return CUDA_SUCCESS;
}

CUresult stream_destroy(CUstream stream) {
  const CUresult result = result_of("cuStreamDestroy");
  Work& work = Work::get();
  const Lock lock(work.mutex);
  auto found = work.take(stream);
  if (found == nullptr) {
    return work.misuse(CUDA_ERROR_INVALID_HANDLE, "a stream is destroyed that is none");
  }
  found->closing = true;
  work.destroyed.push_back(std::move(found));
  work.changed.notify_all();
  return result;
}

CUresult stream_synchronize(CUstream stream) {
  const CUresult result = result_of("cuStreamSynchronize");
  Work& work = Work::get();
  Lock lock(work.mutex);
  const auto found = work.stream(stream);
  if (found == nullptr) {
    return work.misuse(CUDA_ERROR_INVALID_HANDLE, "a stream is waited for that is none");
  }
  work.wait_for(*found, lock);
  return result == CUDA_SUCCESS ? work.state_of(found->device) : result;
}

CUresult ctx_synchronize() {
  const CUresult result = result_of("cuCtxSynchronize");
  const int device = FakeCuda::current();
  if (device < 0) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  Work& work = Work::get();
  Lock lock(work.mutex);
  for (const auto& stream : work.streams_of(device)) {
    work.wait_for(*stream, lock);
  }
  return result == CUDA_SUCCESS ? work.state_of(device) : result;
}

CUresult event_create(CUevent* event, unsigned /*flags*/) {
  if (const CUresult failed = result_of("cuEventCreate"); failed != CUDA_SUCCESS) {
    return failed;
  }
  if (FakeCuda::current() < 0) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  Work& work = Work::get();
  const Lock lock(work.mutex);
  *event = work.add(std::make_shared<Event>(Event{FakeCuda::current()}));
  return CUDA_SUCCESS;
}

CUresult event_record(CUevent event, CUstream stream) {
  if (const CUresult failed = result_of("cuEventRecord"); failed != CUDA_SUCCESS) {
    return failed;
  }
  Work& work = Work::get();
  const Lock lock(work.mutex);
  const auto recording = work.stream(stream);
  const auto recorded = work.event(event);
  if (recording == nullptr || recorded == nullptr || recording->device != recorded->device) {
    return work.misuse(CUDA_ERROR_INVALID_HANDLE, "an event is recorded that is none, or on another context's stream");
  }
  work.ask(*recording, {Operation::Kind::record, recorded, ++recorded->recorded});
  return CUDA_SUCCESS;
}

CUresult event_synchronize(CUevent event) {
  const CUresult result = result_of("cuEventSynchronize");
  Work& work = Work::get();
  Lock lock(work.mutex);
  const auto found = work.event(event);
  if (found == nullptr) {
    return work.misuse(CUDA_ERROR_INVALID_HANDLE, "an event is waited for that is none");
  }
  work.changed.wait(lock, [&, until = found->recorded] { return found->reached >= until; });
  return result == CUDA_SUCCESS ? work.state_of(found->device) : result;
}

CUresult event_destroy(CUevent event) {
  const CUresult result = result_of("cuEventDestroy");
  Work& work = Work::get();
  const Lock lock(work.mutex);
  if (work.take(event) == nullptr) {
    return work.misuse(CUDA_ERROR_INVALID_HANDLE, "an event is destroyed that is none");
  }
  return result;
}

}  // namespace

void add_streams(CudaDriver& driver) {
  driver.stream_create = stream_create;
  driver.stream_destroy = stream_destroy;
  driver.stream_synchronize = stream_synchronize;
  driver.ctx_synchronize = ctx_synchronize;
  driver.event_create = event_create;
  driver.event_record = event_record;
  driver.event_synchronize = event_synchronize;
  driver.event_destroy = event_destroy;
}

}  // namespace ortmulti::tests
