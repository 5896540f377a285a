#include "core/pool/batch.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/base/error.hpp"
#include "core/ort/value.hpp"

namespace ortmulti {
namespace {

struct Tensor {
  ONNXTensorElementDataType type;
  std::vector<std::int64_t> shape;
};

bool read(const Ort::Value& value, Tensor& tensor) {
  if (value == nullptr || !value.IsTensor()) {
    return false;
  }
  const auto info = value.GetTensorTypeAndShapeInfo();
  tensor.type = info.GetElementType();
  tensor.shape = info.GetShape();
  return tensor.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING && value.GetTensorMemoryInfo().GetAllocatorName() == "Cpu";
}

// A tensor as rows: what lies before the axis, and the bytes of what lies behind it, for an index of the axis each.
struct Layout {
  std::size_t before = 1;
  std::size_t along = 0;
  std::size_t bytes_behind = 1;

  Layout(const Tensor& tensor, std::size_t axis) : along(static_cast<std::size_t>(tensor.shape[axis])) {
    for (std::size_t i = 0; i < axis; ++i) {
      before *= static_cast<std::size_t>(tensor.shape[i]);
    }
    const std::vector<std::int64_t> behind(tensor.shape.begin() + static_cast<std::ptrdiff_t>(axis) + 1,
                                           tensor.shape.end());
    bytes_behind = tensor_bytes(tensor.type, behind);
  }
};

std::shared_ptr<Request> like(const Request& request) {
  auto joint = std::make_shared<Request>();
  joint->timeline = request.timeline;
  joint->output_names = request.output_names;
  joint->own_run_options.emplace();
  joint->run_options = &*joint->own_run_options;
  return joint;
}

const Ort::AllocatorWithDefaultOptions& cpu() {
  static const Ort::AllocatorWithDefaultOptions allocator;
  return allocator;
}

Ort::Value new_tensor(const Tensor& tensor) {
  return Ort::Value::CreateTensor(cpu(), tensor.shape.data(), tensor.shape.size(), tensor.type);
}

// 4-bit types share bytes between rows.
bool has_whole_bytes(const Tensor& tensor) {
  return tensor_bytes(tensor.type, {2}) == 2 * tensor_bytes(tensor.type, {1});
}

}  // namespace

std::size_t Batching::padded(std::size_t size) const noexcept {
  const auto next = std::lower_bound(sizes.begin(), sizes.end(), size);
  return next == sizes.end() ? size : *next;
}

void Grace::record_run(std::size_t size, std::chrono::nanoseconds time) noexcept {
  answered_ = size;
  run_time_ += run_time_.count() == 0 ? time : (time - run_time_) / 8;
}

std::chrono::nanoseconds Grace::longest_wait(std::size_t workers) const noexcept {
  constexpr std::chrono::microseconds shortest{50};  // a thread needs as long to wake up
  const std::chrono::nanoseconds time = run_time_ / 10 / static_cast<std::int64_t>(workers);
  return time < shortest ? std::chrono::nanoseconds(0) : time;
}

bool Grace::tries() noexcept {
  const bool now = left_ == 0;
  left_ -= now ? 0 : 1;
  return now;
}

void Grace::record_wait(std::size_t came, std::size_t most) noexcept {
  constexpr unsigned longest = 63;
  pause_ = 2 * came >= most ? 0 : std::min(2 * pause_ + 1, longest);
  left_ = pause_;
}

std::size_t batch_size(const Request& request, std::size_t axis) {
  std::size_t size = 0;
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    Tensor tensor{};
    if (!read(request.inputs.values()[i], tensor) || axis >= tensor.shape.size() || !has_whole_bytes(tensor)) {
      return 0;
    }
    const auto along = static_cast<std::size_t>(tensor.shape[axis]);
    if (along == 0 || (size != 0 && along != size)) {
      return 0;
    }
    size = along;
  }
  return size;
}

std::string batch_key(const Request& request, std::size_t axis) {
  if (request.outputs_on_device || batch_size(request, axis) == 0) {
    return {};
  }
  std::string key;
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    Tensor tensor{};
    static_cast<void>(read(request.inputs.values()[i], tensor));
    key.append(request.inputs.names()[i]).append(1, '\0').append(std::to_string(tensor.type));
    for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
      key.append(1, ',').append(d == axis ? "*" : std::to_string(tensor.shape[d]));
    }
    key.append(1, '\0');
  }
  for (const char* name : request.output_names) {
    key.append(1, '\0').append(name);
  }
  return key;
}

std::shared_ptr<Request> join(const std::vector<std::shared_ptr<Request>>& requests, const Batching& batching) {
  const std::size_t axis = batching.axis;
  auto joint = like(*requests.front());
  for (std::size_t i = 0; i < requests.front()->inputs.size(); ++i) {
    Tensor whole{};
    static_cast<void>(read(requests.front()->inputs.values()[i], whole));
    whole.shape[axis] = 0;
    for (const auto& request : requests) {
      whole.shape[axis] += request->inputs.values()[i].GetTensorTypeAndShapeInfo().GetShape()[axis];
    }
    const auto size = static_cast<std::size_t>(whole.shape[axis]);
    whole.shape[axis] = static_cast<std::int64_t>(batching.padded(size));
    Ort::Value value = new_tensor(whole);
    const Layout target(whole, axis);
    auto* to = static_cast<std::byte*>(value.GetTensorMutableRawData());
    std::size_t offset = 0;
    for (const auto& request : requests) {
      Tensor part{};
      static_cast<void>(read(request->inputs.values()[i], part));
      const Layout source(part, axis);
      const auto* from = static_cast<const std::byte*>(request->inputs.values()[i].GetTensorRawData());
      const std::size_t row = source.along * source.bytes_behind;
      for (std::size_t r = 0; r < source.before; ++r) {
        std::memcpy(to + r * target.along * target.bytes_behind + offset, from + r * row, row);
      }
      offset += row;
    }
    // Values that occur, as the model may not take others.
    for (std::size_t r = 0; r < target.before; ++r) {
      std::byte* const begin = to + r * target.along * target.bytes_behind;
      for (std::size_t pad = size; pad < target.along; ++pad) {
        std::memcpy(begin + pad * target.bytes_behind, begin + (size - 1) * target.bytes_behind, target.bytes_behind);
      }
    }
    joint->inputs.add(requests.front()->inputs.names()[i], std::move(value));
  }
  return joint;
}

void split(Request& joint, const std::vector<std::shared_ptr<Request>>& requests, std::size_t axis) {
  std::size_t whole_size = 0;
  std::vector<std::size_t> sizes;
  for (const auto& request : requests) {
    sizes.push_back(batch_size(*request, axis));
    whole_size += sizes.back();
  }
  whole_size = std::max(whole_size, batch_size(joint, axis));  // where it was padded
  std::vector<std::vector<Ort::Value>> parts(requests.size());
  for (std::size_t o = 0; o < joint.outputs.size(); ++o) {
    Tensor whole{};
    if (!read(joint.outputs[o], whole) || axis >= whole.shape.size() ||
        static_cast<std::size_t>(whole.shape[axis]) != whole_size) {
      throw Error(ErrorKind::invalid_argument,
                  "output '" + std::string(joint.output_names[o]) + "' of a batch of " + std::to_string(whole_size) +
                      " cannot be split along dimension " + std::to_string(axis) +
                      ": it has another size there; load the model without batching, or ask for other outputs");
    }
    const Layout source(whole, axis);
    const auto* from = static_cast<const std::byte*>(joint.outputs[o].GetTensorRawData());
    std::size_t offset = 0;
    for (std::size_t k = 0; k < requests.size(); ++k) {
      Tensor part = whole;
      part.shape[axis] = static_cast<std::int64_t>(sizes[k]);
      Ort::Value value = new_tensor(part);
      auto* to = static_cast<std::byte*>(value.GetTensorMutableRawData());
      const std::size_t row = sizes[k] * source.bytes_behind;
      for (std::size_t r = 0; r < source.before; ++r) {
        std::memcpy(to + r * row, from + r * source.along * source.bytes_behind + offset, row);
      }
      offset += row;
      parts[k].push_back(std::move(value));
    }
  }
  for (std::size_t k = 0; k < requests.size(); ++k) {
    requests[k]->outputs = std::move(parts[k]);
  }
}

}  // namespace ortmulti
