#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/base/async_runs.hpp"
#include "core/base/mutex.hpp"
#include "core/cuda/graph.hpp"
#include "core/ort/session.hpp"
#include "core/policy/launch_times.hpp"
#include "core/pool/gpu_session.hpp"

namespace ortmulti {

/// The one shape that a session with CUDA graphs runs, since a graph is launched as long as the session lives. ONNX
/// Runtime's Conv and other nodes keep one cuDNN plan, that of the last shape. A plan that goes unloads the kernels
/// that cuDNN compiled for it (cuLibraryUnload), and a graph that has them crashes in cuGraphLaunch
/// (onnxruntime-gpu 1.31.1, cuDNN 9.19).
class OneShape {
 public:
  /// Called with the shapes_key() of what is to run. Throws Error for another shape than the first.
  void use(const std::string& key);

 private:
  Mutex mutex_;
  std::string key_ ORTMULTI_GUARDED_BY(mutex_);
};

/// A session that was created to capture CUDA graphs, with a stream of its own.
class CapturedSession : public GpuSession {
 public:
  /// Throws Error with ErrorKind::invalid_argument for a session whose inputs or outputs a CUDA graph cannot hold.
  explicit CapturedSession(std::shared_ptr<Session> session);

  OneShape& shape() noexcept { return shape_; }

  /// Has the thread do it that created the session, so that ONNX Runtime makes no handles for another one. No graph
  /// runs meanwhile, and the device's context is current. Nothing is logged there: a try that fails harms nobody, and
  /// its error has the reason.
  void in_thread(const std::function<void(const Session::Lock& open)>& work);
  /// After a capture failed, which may have left what ONNX Runtime has for that thread amid one of its own: another
  /// thread does it from now on. The threads before stay as long as this object.
  void renew_thread();
  /// Launches the graph behind what was launched before, on whichever stream. Returns when it is expected to end.
  LaunchTimes::Launch launch(const CudaGraph& graph, CUstream stream, const void* shape);
  /// Notes that the GPU has done it; as LaunchTimes::end().
  void end_launch(const LaunchTimes::Launch& launch, std::optional<LaunchTimes::Clock::time_point> woke);

 private:
  OneShape shape_;
  /// Held while it runs, or a graph is launched: one runs at a time, since a graph has the addresses of what ONNX
  /// Runtime's arena had free when it was captured, and what runs beside it would use the same memory.
  std::mutex slot_;
  std::unique_ptr<CudaEvent> launched_;  // after the last launch
  Mutex launch_times_mutex_;
  LaunchTimes launch_times_ ORTMULTI_GUARDED_BY(launch_times_mutex_);
  std::mutex thread_mutex_;
  std::vector<std::unique_ptr<AsyncRuns>> threads_;  // the last one is in use; none: the session's own
};

}  // namespace ortmulti
