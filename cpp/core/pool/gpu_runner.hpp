#pragma once

#include <onnxruntime_cxx_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "core/base/mutex.hpp"
#include "core/base/non_copyable.hpp"
#include "core/base/timeline.hpp"
#include "core/cuda/copies.hpp"
#include "core/cuda/memory.hpp"
#include "core/ort/session.hpp"
#include "core/pool/gpu_session.hpp"
#include "core/pool/request.hpp"
#include "core/pool/runner.hpp"

namespace ortmulti {

/// Runs requests with a session on a GPU. Inputs and outputs of the host are copied on the runner's own stream, through
/// pinned memory, while the session's other runners run.
class GpuRunner : public SessionRunner, NonCopyable {
 public:
  /// It takes memory of the GPU and pinned memory in prepare(), or in its first run.
  explicit GpuRunner(std::shared_ptr<GpuSession> session);
  ~GpuRunner() override;

  void prepare();
  /// For one thread at a time, with a request that is prepared.
  void run(Request& request) override;
  std::shared_ptr<std::byte> memory_for_inputs(std::size_t bytes) noexcept override;

 protected:
  using Tensors = std::vector<RequestTensor>;

  /// Adds its lifetime to the time that the request's copies took, and to its trace.
  class CopyingTime : NonCopyable {
   public:
    CopyingTime(Request& request, std::string_view device) : request_(request), span_(request.trace, "copy", device) {}
    ~CopyingTime() { request_.copying += Request::Clock::now() - began_; }

   private:
    Request& request_;
    const Request::Clock::time_point began_ = Request::Clock::now();
    const ScopedSpan span_;
  };

  virtual void run_tensors(Request& request, Tensors& inputs) = 0;
  /// Has the session run the inputs: copies of those that the GPU reads and that lie elsewhere. Returns the outputs.
  std::vector<Ort::Value> run_session(Request& request, const Tensors& inputs, const Session::Lock& open,
                                      const Ort::RunOptions& run_options);
  /// Gives back memory_for_inputs(), unless a request has it: then with that. Any thread may call it.
  void free_memory_for_inputs();
  void copy_in(void* target, const RequestTensor& input);
  /// Fills in the request's outputs from those of a run. `copy_on_device`: outputs on the device are copied, too.
  void answer(Request& request, std::vector<Ort::Value> outputs, bool copy_on_device);

  // NOLINTBEGIN(readability-identifier-naming): as in one class, whose kinds share them
  const std::shared_ptr<GpuSession> shared_;
  std::unique_ptr<StagedCopies> copies_;
  std::unique_ptr<const CudaMemory> staged_;  // where inputs are copied to
                                              // NOLINTEND(readability-identifier-naming)

 private:
  void bind_inputs(const Tensors& inputs, const Session::Lock& open);
  Ort::Value to_host(const Ort::Value& value);
  Ort::Value copy_to(const CudaMemory& memory, const Ort::Value& value);

  Ort::IoBinding binding_{nullptr};

  Mutex pinned_mutex_;
  std::shared_ptr<std::byte> pinned_ ORTMULTI_GUARDED_BY(pinned_mutex_);  // kept from one joint run to the next
  std::size_t pinned_bytes_ ORTMULTI_GUARDED_BY(pinned_mutex_) = 0;
  std::size_t refused_bytes_ ORTMULTI_GUARDED_BY(pinned_mutex_) = SIZE_MAX;  // that could not be pinned
};

}  // namespace ortmulti
