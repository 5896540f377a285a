#pragma once

#include <functional>

#include "core/base/error.hpp"
#include "core/cuda/startup.hpp"

namespace ortmulti {

/// A stream of a device, which does not wait for the default stream. Create it with the device's context current.
class CudaStream : NonCopyable {
 public:
  CudaStream(CudaStartup& startup, int device);
  ~CudaStream();  ///< Waits for the stream's work: its buffers may be freed next.

  CUstream get() const noexcept { return stream_; }

 private:
  CudaStartup& startup_;
  int device_;
  unsigned generation_;
  CUstream stream_ = nullptr;
};

/// An event without timing. Create it with the device's context current.
class CudaEvent : NonCopyable {
 public:
  CudaEvent(CudaStartup& startup, int device);
  ~CudaEvent();

  CUevent get() const noexcept { return event_; }
  /// Waits until the event was reached: asks for it all the time, since a run took 0.1 to 0.2 ms longer on an H100 with
  /// a thread that the driver wakes up. An event that was never recorded counts as reached.
  CUresult wait() const { return startup_.driver().event_synchronize(event_); }

 private:
  CudaStartup& startup_;
  unsigned generation_;
  CUevent event_ = nullptr;
};

/// A capture was invalidated: something waited for the whole device meanwhile, or the captured work does what no
/// capture can hold. Nobody can tell which, so it may succeed the next time.
class CaptureInvalidated : public Error {
 public:
  using Error::Error;
};

/// What was asked of a stream once, ready to be launched as a whole any number of times, on any stream of the device.
class CudaGraph : NonCopyable {
 public:
  /// Captures what `work` asks of the stream, which does not happen then. In this thread, which must not ask CUDA for
  /// anything else meanwhile. Throws CaptureInvalidated; what `work` throws; Error where the graph would read or write
  /// memory of the host, which may be something else by the time it is launched.
  CudaGraph(CudaStartup& startup, CUstream stream, const std::function<void()>& work);
  ~CudaGraph();

  void launch(CUstream stream) const;

 private:
  void check_nodes(CUgraph graph) const;

  CudaStartup& startup_;
  CUgraphExec ready_ = nullptr;
};

}  // namespace ortmulti
