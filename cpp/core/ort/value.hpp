#pragma once

#include <onnxruntime_cxx_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/device.hpp"

namespace ortmulti {

/// A value's type: a tensor, or what holds others.
struct ValueType {
  ONNXType kind = ONNX_TYPE_UNKNOWN;
  /// The type of a tensor's elements, or of a map's keys.
  ONNXTensorElementDataType element_type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::vector<ValueType> of;  ///< What a sequence or an optional holds, or a map's values: one type.
};

/// An input or output as the model declares it.
struct ValueInfo {
  std::string name;
  std::string type;  ///< "tensor(float)", "seq(map(int64,tensor(float)))": onnxruntime's spelling.
  ValueType value_type;
  bool is_tensor = false;
  ONNXTensorElementDataType element_type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::vector<std::int64_t> shape;           ///< -1 where the model leaves the dimension open.
  std::vector<std::string> dimension_names;  ///< Empty where a dimension has no name; as long as `shape`.
};

struct Metadata {
  std::string producer_name;
  std::string graph_name;
  std::string domain;
  std::string description;
  std::string graph_description;
  std::int64_t version = 0;
  std::map<std::string, std::string> custom;
};

/// Reads a declaration out of ONNX Runtime.
ValueInfo make_value_info(std::string name, const Ort::TypeInfo& type);

/// "tensor(float)", "seq(map(int64,tensor(float)))": onnxruntime's spelling.
std::string type_name(const ValueType& type);

Metadata read_metadata(const Ort::ModelMetadata& metadata);

/// The values' names: pointers that are valid as long as the values.
std::vector<const char*> name_pointers(const std::vector<ValueInfo>& values);

/// The bytes of a tensor's elements; those of fewer than 8 bits share bytes. Throws Error for a dimension below 0,
/// for more bytes than there are addresses, and for a type that has no elements of a fixed size.
std::size_t tensor_bytes(ONNXTensorElementDataType type, const std::vector<std::int64_t>& shape);

/// The bytes of this tensor's elements. Throws Error as the function above.
std::size_t tensor_bytes(const Ort::Value& tensor);

/// A copy in the host's memory of a tensor without strings, from wherever it lies.
Ort::Value copy_on_host(const Ort::Value& tensor);

/// Whether tensors in the host's memory have as many bytes, and the same ones.
bool same_bits(const Ort::Value& left, const Ort::Value& right);

/// The memory of a device, as ONNX Runtime names it.
Ort::MemoryInfo memory_info(const Device& device);
/// A tensor of new memory of the host, whose elements have no particular value.
Ort::Value new_tensor(ONNXTensorElementDataType type, const std::vector<std::int64_t>& shape);
/// A tensor over memory of a device. Of memory that may not be written to it can be an input alone.
Ort::Value tensor_over(const void* data, ONNXTensorElementDataType type, const std::vector<std::int64_t>& shape,
                       const Device& device);
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
  static std::shared_ptr<Value> over(const void* data, ONNXTensorElementDataType type,
                                     const std::vector<std::int64_t>& shape, const Device& device,
                                     std::shared_ptr<const void> owner, bool writable = true);
  /// A tensor of new memory, whose elements have no particular value; strings are empty.
  static std::shared_ptr<Value> allocate(ONNXTensorElementDataType type, const std::vector<std::int64_t>& shape,
                                         const Device& device);

  /// Sets the owner of memory that had none, before other threads know the value.
  void belong_to(std::shared_ptr<const void> owner) noexcept { owner_ = std::move(owner); }

  const Ort::Value& get() const noexcept { return value_; }
  bool writable() const noexcept { return writable_; }

  bool has_value() const { return value_ != nullptr && value_.HasValue(); }
  bool is_tensor() const { return has_value() && value_.IsTensor(); }
  /// "tensor(float)", "seq(tensor(int64))": as a model declares it.
  std::string type() const;

  // These are for tensors. They throw Error with ErrorKind::invalid_type for other values.
  std::vector<std::int64_t> shape() const;
  ONNXTensorElementDataType element_type() const;
  std::size_t bytes() const;
  Device device() const;
  void* data() const;  ///< Its address on its device; not of strings.
  /// Whether an address lies in the tensor's memory.
  bool contains(const void* address) const noexcept;

  /// Copies all of this tensor's memory; done on return, as the next.
  void copy_to_host(void* target) const;
  /// Copies from a value on whichever device, which has the same number of bytes.
  void copy_from(const Value& source) const;
  std::shared_ptr<Value> copied_to(const Device& device) const;

 private:
  const Ort::Value& tensor() const;

  std::shared_ptr<const void> owner_;
  bool writable_;
  Ort::Value value_;  // freed before its owner
};

/// A hash of shapes, to recognize a run with others than the run before: that of no value, and with a further one's.
constexpr std::uint64_t no_shapes = 0xcbf29ce484222325;
std::uint64_t add_shape(std::uint64_t shapes, const Ort::Value& value);

/// A dense tensor in the host's memory, described without asking ONNX Runtime.
struct HostTensor {
  static constexpr std::size_t max_dimensions = 8;

  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::size_t rank = 0;
  std::array<std::int64_t, max_dimensions> shape{};
  const void* data = nullptr;
};

/// False for what is no tensor of elements of a fixed size in the host's memory, or has too many dimensions.
bool describe(const Ort::Value& value, HostTensor& tensor);
/// Its shape as Python writes it: "(1, 5)", "(2,)".
std::string shape_text(const HostTensor& tensor);

/// A value over memory of the host, for an input: ONNX Runtime only reads these, though its C API has no pointer to
/// const.
Ort::Value value_over(const void* data, ONNXTensorElementDataType type, const std::int64_t* shape, std::size_t rank);
inline Ort::Value value_over(const HostTensor& tensor) {
  return value_over(tensor.data, tensor.type, tensor.shape.data(), tensor.rank);
}

/// What one run is fed, as ONNX Runtime takes it: values that are freed with it, and others', which must outlive it.
/// For one thread at a time.
class RunInputs {
 public:
  RunInputs() = default;
  ~RunInputs() {
    for (const std::size_t index : borrowed_) {
      static_cast<void>(values_[index].release());
    }
  }
  RunInputs(const RunInputs&) = delete;
  RunInputs& operator=(const RunInputs&) = delete;
  RunInputs(RunInputs&&) noexcept = default;
  RunInputs& operator=(RunInputs&& other) noexcept {
    std::swap(names_, other.names_);
    std::swap(values_, other.values_);
    std::swap(borrowed_, other.borrowed_);
    std::swap(known_, other.known_);
    return *this;
  }

  void reserve(std::size_t count) {
    names_.reserve(count);
    known_.reserve(count);
  }

  /// The name must outlive this.
  void add(const char* name, Ort::Value value) {
    fill_up();
    names_.push_back(name);
    values_.push_back(std::move(value));
  }
  /// Its value is made by values(): a request that joins others needs none.
  void add(const char* name, const HostTensor& tensor) {
    names_.push_back(name);
    known_.resize(names_.size());
    known_.back() = tensor;
  }
  void add(const char* name, const Value& value) {
    add(name, Ort::Value(nullptr));
    borrowed_.push_back(values_.size() - 1);
    // Last, so that nothing that throws frees what is others'.
    const OrtValue* const held = value.get();
    values_.back() = Ort::Value(const_cast<OrtValue*>(held));  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  }

  const std::vector<const char*>& names() const noexcept { return names_; }
  const Ort::Value* values() const;
  std::size_t size() const noexcept { return names_.size(); }
  /// The description of a value that was added as one; else null.
  const HostTensor* known(std::size_t index) const noexcept {
    return index < known_.size() && known_[index].type != ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED ? &known_[index]
                                                                                                  : nullptr;
  }

 private:
  void fill_up() const {
    while (values_.size() < names_.size()) {
      values_.emplace_back(nullptr);
    }
  }

  std::vector<const char*> names_;
  mutable std::vector<Ort::Value> values_;  // of the first names, until values() is called
  std::vector<HostTensor> known_;
  std::vector<std::size_t> borrowed_;  // their indices
};

/// Tensors of zeros, with 1 for each open dimension. Throws Error where an input is no tensor of numbers.
RunInputs zeros(const std::vector<ValueInfo>& inputs);

}  // namespace ortmulti
