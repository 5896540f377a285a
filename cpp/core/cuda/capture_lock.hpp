#pragma once

#include <onnxruntime_cxx_api.h>

#include <cstdint>

#include "core/base/device.hpp"

namespace ortmulti {

/// Keeps apart, on each GPU, runs that may capture a stream and what waits for the whole device. cuDNN captures the
/// first convolution of a shape, and CUDA lets a device not be waited for while one of its streams is captured: both
/// would fail, as they do with ONNX Runtime's own sessions. Creating and freeing a session waits for its device. Work
/// of one kind goes on side by side; of both kinds, who came first goes first. For the CPU it does nothing.
class CaptureGuard {
 public:
  enum class Work { may_capture, waits_for_device };

  /// Waits until nothing of the other kind is under way on the device. Not twice in a thread.
  CaptureGuard(const Device& device, Work work);
  ~CaptureGuard();
  CaptureGuard(const CaptureGuard&) = delete;
  CaptureGuard& operator=(const CaptureGuard&) = delete;

 private:
  struct Turns;

  static Turns& turns_of(int device);

  Turns* turns_ = nullptr;
};

/// A hash of shapes, to recognize a run with others than the run before: that of no value, and with a further one's.
constexpr std::uint64_t no_shapes = 0xcbf29ce484222325;
std::uint64_t add_shape(std::uint64_t shapes, const Ort::Value& value);

}  // namespace ortmulti
