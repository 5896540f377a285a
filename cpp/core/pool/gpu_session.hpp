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

#include "core/base/device.hpp"
#include "core/cuda/memory.hpp"
#include "core/ort/session.hpp"
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
  explicit GpuSession(std::shared_ptr<Session> session);

  const std::shared_ptr<Session>& session() const noexcept { return session_; }

  /// Whether the GPU reads an input of so many bytes, or writes an output, so that it is best there already.
  bool reads_on_device(std::string_view input, std::size_t bytes) const;
  bool writes_on_device(std::string_view output) const;

  std::shared_ptr<const CudaMemory> allocate(std::size_t bytes) { return blocks_->take(bytes); }
  /// Frees the blocks of memory that nobody uses.
  void free_blocks() { blocks_->free(); }

 private:
  using Placement = std::map<std::string, bool, std::less<>>;

  std::shared_ptr<Session> session_;
  bool placement_known_ = false;
  Placement inputs_;  // whether on the device
  Placement outputs_;
  std::shared_ptr<DeviceBlocks> blocks_;
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
  bool pinned = false;                ///< It lies in pinned memory of the host.
};

/// The request's inputs; nothing where one is no tensor of elements of a fixed size.
std::optional<std::vector<RequestTensor>> tensors_of(const Request& request, const GpuSession& session);

/// The GPU on which inputs lie, if it is one.
std::optional<Device> device_of_inputs(const Request& request);

void sort_by_name(std::vector<RequestTensor>& inputs);

/// By which inputs of the same names, types and shapes are known, in the order of their names.
std::string shapes_key(const std::vector<RequestTensor>& inputs);

/// The shapes, as Session::run() takes them.
std::uint64_t shapes_of(const std::vector<RequestTensor>& inputs);

/// The bytes that they take, each at an address that every type may have.
std::size_t aligned(std::size_t bytes);

}  // namespace ortmulti
