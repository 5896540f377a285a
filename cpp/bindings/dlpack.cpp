#include "bindings/dlpack.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "bindings/gil.hpp"
#include "bindings/python_value.hpp"
#include "bindings/text.hpp"
#include "core/base/error.hpp"
#include "core/onnx/element_types.hpp"

namespace ortmulti::bindings::dlpack {
namespace {

// DLPack's ABI before its versioned form, which is what onnxruntime takes. Names, order and widths are the protocol's.
struct TensorDevice {
  std::int32_t device_type;
  std::int32_t device_id;
};

struct Tensor {
  void* data;
  TensorDevice device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // null: one row after the other, without gaps
  std::uint64_t byte_offset;
};

struct ManagedTensor {
  Tensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(ManagedTensor*);
};

constexpr std::int32_t cpu = 1;
constexpr std::int32_t cuda = 2;
constexpr std::int32_t cuda_host = 3;

constexpr const char* capsule_name = "dltensor";
constexpr const char* taken_name = "used_dltensor";  // once someone has taken the tensor

// A tensor of ours, with what it keeps alive.
struct SharedTensor {
  ManagedTensor tensor{};
  std::shared_ptr<const void> owner;
  std::vector<std::int64_t> shape;
};

// Called once, from any thread, with or without the GIL. Memory of a GPU waits for a capture that is under way.
void delete_tensor(ManagedTensor* tensor) {
  without_gil(
      [&] { delete static_cast<SharedTensor*>(tensor->manager_ctx); });  // NOLINT(cppcoreguidelines-owning-memory)
}

// A tensor that was taken is its taker's, who has renamed the capsule.
void delete_capsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, capsule_name) != 0) {
    auto* tensor = static_cast<ManagedTensor*>(PyCapsule_GetPointer(capsule, capsule_name));
    tensor->deleter(tensor);
  }
}

std::optional<ONNXTensorElementDataType> onnx_type(const DataType& type, bool is_bool) {
  if (type.lanes != 1) {
    return std::nullopt;
  }
  if (is_bool && type.bits == 8 && type.code == dlpack_code::unsigned_integer) {
    return ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL;
  }
  for (const ElementType& known : element_types()) {
    if (known.dlpack == type.code && known.bits == type.bits) {
      return static_cast<ONNXTensorElementDataType>(known.number);
    }
  }
  return std::nullopt;
}

Device device_in(const TensorDevice& device) {
  switch (device.device_type) {
    case cpu:
    case cuda_host:
      return Device::cpu();
    case cuda:
      return Device::cuda(device.device_id);
    default:
      throw Error(ErrorKind::not_implemented, "the tensor is on a device of DLPack's type " +
                                                  std::to_string(device.device_type) +
                                                  "; values are on the CPU (1) and on CUDA devices (2)");
  }
}

bool contiguous(const Tensor& tensor) {
  if (tensor.strides == nullptr) {
    return true;
  }
  std::int64_t expected = 1;
  bool follows = true;
  for (std::int32_t i = tensor.ndim; i-- > 0;) {
    if (tensor.shape[i] == 0) {
      return true;
    }
    follows = follows && (tensor.shape[i] == 1 || tensor.strides[i] == expected);
    if (__builtin_mul_overflow(expected, tensor.shape[i], &expected)) {
      return false;
    }
  }
  return follows;
}

}  // namespace

std::optional<DataType> type_of(ONNXTensorElementDataType type, bool bool_is_uint8) {
  const ElementType* found = find_element_type(type);
  if (found == nullptr || found->dlpack == dlpack_code::none) {
    return std::nullopt;
  }
  const bool to_uint8 = bool_is_uint8 && found->dlpack == dlpack_code::boolean;
  return DataType{static_cast<std::uint8_t>(to_uint8 ? dlpack_code::unsigned_integer : found->dlpack),
                  static_cast<std::uint8_t>(found->bits), 1};
}

std::pair<int, int> device_of(const Device& device) {
  return device.is_cuda() ? std::pair(int{cuda}, device.index) : std::pair(int{cpu}, 0);
}

py::object make_capsule(void* data, const Device& device, const DataType& type, std::vector<std::int64_t> shape,
                        std::shared_ptr<const void> owner) {
  auto shared = std::make_unique<SharedTensor>();
  shared->owner = std::move(owner);
  shared->shape = std::move(shape);
  Tensor& tensor = shared->tensor.dl_tensor;
  tensor.data = data;
  const auto [device_type, device_id] = device_of(device);
  tensor.device = {device_type, device_id};
  tensor.ndim = static_cast<std::int32_t>(shared->shape.size());
  tensor.dtype = type;
  tensor.shape = shared->shape.data();
  shared->tensor.deleter = &delete_tensor;
  auto capsule = owned(PyCapsule_New(&shared->tensor, capsule_name, &delete_capsule));
  ManagedTensor& given = shared->tensor;
  given.manager_ctx = shared.release();  // the capsule's
  return capsule;
}

std::shared_ptr<const Value> take(py::handle capsule, bool is_bool, py::object source) {
  if (PyCapsule_IsValid(capsule.ptr(), capsule_name) == 0) {
    throw Error(ErrorKind::invalid_type,
                "from_dlpack takes an object with __dlpack__, or an unused capsule 'dltensor'");
  }
  auto* const managed = static_cast<ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), capsule_name));
  const Tensor& tensor = managed->dl_tensor;
  const Device device = device_in(tensor.device);
  const std::optional<ONNXTensorElementDataType> type = onnx_type(tensor.dtype, is_bool);
  if (!type) {
    throw Error(ErrorKind::invalid_type,
                "ONNX Runtime has no tensors of DLPack's type (" + std::to_string(tensor.dtype.code) + ", " +
                    std::to_string(tensor.dtype.bits) + " bits, " + std::to_string(tensor.dtype.lanes) + " lanes)");
  }
  if (tensor.ndim < 0 || (tensor.ndim > 0 && tensor.shape == nullptr)) {
    throw Error(ErrorKind::invalid_argument,
                "the tensor has " + std::to_string(tensor.ndim) + " dimensions, which its shape does not name");
  }
  if (!contiguous(tensor)) {
    throw Error(ErrorKind::invalid_argument, "the tensor is not contiguous, as a value is; copy it first");
  }
  const std::vector<std::int64_t> shape(tensor.shape, tensor.shape + tensor.ndim);
  void* const data = tensor.data == nullptr ? nullptr : static_cast<char*>(tensor.data) + tensor.byte_offset;
  if (reinterpret_cast<std::uintptr_t>(data) % std::max(tensor.dtype.bits / 8U, 1U) != 0) {
    throw Error(ErrorKind::invalid_argument, "the tensor is not aligned to its elements; copy it first");
  }
  // Made before the tensor is taken, since it may refuse it.
  const std::shared_ptr<Value> value = Value::over(data, *type, shape, device, nullptr);
  if (PyCapsule_SetName(capsule.ptr(), taken_name) != 0) {
    throw py::error_already_set();
  }
  const std::shared_ptr<const void> kept = keep(std::move(source));
  value->belong_to(std::shared_ptr<ManagedTensor>(managed, [kept](ManagedTensor* taken) {
    if (taken->deleter != nullptr && Py_IsInitialized() != 0) {
      const AcquireGil gil;
      taken->deleter(taken);
    }
  }));
  return value;
}

}  // namespace ortmulti::bindings::dlpack
