#pragma once

#include <onnxruntime_cxx_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/device.hpp"

namespace ortmulti {

/// The bytes of a tensor's elements, two of which share a byte in 4-bit types. Throws Error for a dimension below 0,
/// for more bytes than there are addresses, and for a type that has no elements of a fixed size.
std::size_t tensor_bytes(ONNXTensorElementDataType type, const std::vector<std::int64_t>& shape);

/// As above, of a tensor that is there.
std::size_t tensor_bytes(const Ort::Value& tensor);

/// The memory of a device, as ONNX Runtime names it.
Ort::MemoryInfo memory_info(const Device& device);
/// Whose memory it is. Pinned memory is the CPU's, and releases of ONNX Runtime differ in which device they name.
Device device_of(const Ort::ConstMemoryInfo& memory);

/// One of ONNX Runtime's values, with what its memory belongs to. It may be used from several threads; who writes to
/// its memory meanwhile is the callers' affair, as with arrays.
class Value {
 public:
  /// `owner` is freed after the value. Memory that may not be written to can be an input alone.
  explicit Value(Ort::Value value, std::shared_ptr<const void> owner = {}, bool writable = true)
      : owner_(std::move(owner)), writable_(writable), value_(std::move(value)) {}

  /// A tensor over memory that is there; its size is the caller's to know.
  static std::shared_ptr<Value> over(void* data, ONNXTensorElementDataType type, const std::vector<std::int64_t>& shape,
                                     const Device& device, std::shared_ptr<const void> owner, bool writable = true);
  /// A tensor of new memory, whose elements have no particular value; strings are empty.
  static std::shared_ptr<Value> allocate(ONNXTensorElementDataType type, const std::vector<std::int64_t>& shape,
                                         const Device& device);

  /// Sets the owner of memory that had none, before other threads know the value.
  void belong_to(std::shared_ptr<const void> owner) noexcept { owner_ = std::move(owner); }

  const Ort::Value& get() const noexcept { return value_; }
  bool writable() const noexcept { return writable_; }

  bool has_value() const { return value_ != nullptr && value_.HasValue(); }
  bool is_tensor() const { return has_value() && value_.IsTensor(); }
  bool is_sparse_tensor() const;
  bool is_sequence_of_tensors() const;
  /// "tensor(float)", "seq(tensor(int64))": as a model declares it.
  std::string type() const;

  // Of tensors; they throw Error with ErrorKind::invalid_type for others.
  std::vector<std::int64_t> shape() const;
  ONNXTensorElementDataType element_type() const;
  std::size_t bytes() const;
  Device device() const;
  void* data() const;  ///< Its address on its device; not of strings.
  /// Whether an address lies in the tensor's memory.
  bool contains(const void* address) const noexcept;

  /// Copies from and to this tensor's memory, of as many bytes as it has; done on return.
  void copy_from_host(const void* source) const;
  void copy_to_host(void* target) const;
  /// From another value, on whichever device, which has the same number of bytes.
  void copy_from(const Value& source) const;

 private:
  const Ort::Value& tensor() const;
  void check_writable() const;

  std::shared_ptr<const void> owner_;
  bool writable_;
  Ort::Value value_;  // freed before its owner
};

}  // namespace ortmulti
