#pragma once

#include <onnxruntime_cxx_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/async_runs.hpp"
#include "core/base/device.hpp"
#include "core/base/mutex.hpp"
#include "core/cuda/graph.hpp"
#include "core/cuda/memory.hpp"
#include "core/ort/session.hpp"
#include "core/policy/launch_times.hpp"
#include "core/pool/request.hpp"

namespace ortmulti {

/// Memory of a GPU that does not belong to ONNX Runtime's arena. The blocks that were given back last are kept, and
/// used again for the same size.
class DeviceBlocks : public std::enable_shared_from_this<DeviceBlocks> {
 public:
  static constexpr std::size_t kept = 8;

  DeviceBlocks(CudaStartup& startup, int device);

  std::shared_ptr<const CudaMemory> take(std::size_t bytes);
  void free();

 private:
  using Block = std::unique_ptr<const CudaMemory>;

  void give_back(std::size_t bytes, Block block);

  CudaStartup& startup_;
  int device_;
  std::mutex mutex_;
  std::vector<std::pair<std::size_t, Block>> free_;  // the oldest first
};

/// A session on a GPU as several requests use it, each in a runner of its own.
class GpuSession {
 public:
  /// `graphs`: whether it was created to capture CUDA graphs, with a stream of its own. Throws Error with
  /// ErrorKind::invalid_argument for a session whose inputs or outputs a CUDA graph cannot hold.
  GpuSession(std::shared_ptr<Session> session, bool graphs);

  const std::shared_ptr<Session>& session() const noexcept { return session_; }
  bool graphs() const noexcept { return graphs_; }

  /// Whether the GPU reads an input of so many bytes, or writes an output, so that it is best there already.
  bool reads_on_device(std::string_view input, std::size_t bytes) const;
  bool writes_on_device(std::string_view output) const;

  // With graphs:

  /// Called with the shapes_key() of what it is to run: a graph is launched as long as the session lives, so the
  /// session runs nothing else. ONNX Runtime's Conv and other nodes keep one cuDNN plan, that of the last shape. A plan
  /// that goes unloads the kernels that cuDNN compiled for it (cuLibraryUnload), and a graph that has them crashes in
  /// cuGraphLaunch (onnxruntime-gpu 1.31.1, cuDNN 9.19). Throws Error for another shape than the first.
  void use_for(const std::string& key);
  /// Held while it runs: one runs at a time, since a graph has the addresses of what ONNX Runtime's arena had free when
  /// it was captured, and what runs beside it would use the same memory.
  using Slot = std::unique_lock<std::mutex>;
  Slot take_slot() { return Slot(running_); }

  /// Has one thread do it, since ONNX Runtime then keeps what a thread ran with for that thread. Nothing is logged
  /// there: a try that fails harms nobody, and its error has the reason.
  void in_thread(const std::function<void()>& work);
  /// After a capture failed, which may have left what ONNX Runtime has for that thread amid one of its own. The threads
  /// before stay as long as the session: graphs that were captured there use the handles that ONNX Runtime frees with a
  /// thread, and the workspaces of these.
  void renew_thread();
  /// With a slot. Behind what was launched before, on whichever stream. Returns when it is expected to end.
  LaunchTimes::Launch launch(const CudaGraph& graph, CUstream stream, const void* shape);
  /// Notes that the GPU has done it; as LaunchTimes::end().
  void end_launch(const LaunchTimes::Launch& launch, std::optional<LaunchTimes::Clock::time_point> woke);
  void wait_for_launched();

  std::shared_ptr<const CudaMemory> allocate(std::size_t bytes) { return blocks_->take(bytes); }
  /// Those that nobody uses.
  void free_blocks() { blocks_->free(); }

 private:
  using Placement = std::map<std::string, bool, std::less<>>;

  std::shared_ptr<Session> session_;
  bool graphs_;
  bool placement_known_ = false;
  Placement inputs_;  // whether on the device
  Placement outputs_;
  std::mutex running_;
  Mutex launch_times_mutex_;
  LaunchTimes launch_times_ ORTMULTI_GUARDED_BY(launch_times_mutex_);
  std::shared_ptr<DeviceBlocks> blocks_;
  std::unique_ptr<CudaEvent> launched_;  // after the last launch
  std::mutex thread_mutex_;
  std::string key_;
  std::vector<std::unique_ptr<AsyncRuns>> threads_;  // the last one is in use
};

/// A tensor as a run on a GPU sees it.
struct RequestTensor {
  const char* name = nullptr;
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::vector<std::int64_t> shape;
  std::size_t bytes = 0;
  const void* data = nullptr;
  Device device;                      ///< Where it lies.
  const Ort::Value* value = nullptr;  ///< The request's.
  bool to_copy = false;               ///< To the session's device, before it runs.
};

/// The request's inputs; nothing where one is no tensor of elements of a fixed size.
std::optional<std::vector<RequestTensor>> tensors_of(const Request& request, const GpuSession& session);

/// The GPU on which inputs lie, if it is one.
std::optional<Device> device_of_inputs(const Request& request);

/// By which inputs of the same names, types and shapes are known.
std::string shapes_key(const std::vector<RequestTensor>& inputs);

/// The bytes that they take, each at an address that every type may have.
std::size_t aligned(std::size_t bytes);

}  // namespace ortmulti
