#include "core/pool/batch.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <set>

#include "core/base/error.hpp"
#include "core/onnx/element_types.hpp"

namespace ortmulti {
namespace {

// False for what is no tensor of elements of a fixed size in the host's memory, or has too many dimensions.
bool read(const Ort::Value& value, HostTensor& tensor) {
  if (value == nullptr || !value.IsTensor()) {
    return false;
  }
  const auto info = value.GetTensorTypeAndShapeInfo();
  tensor.type = info.GetElementType();
  const std::vector<std::int64_t> shape = info.GetShape();
  tensor.rank = shape.size();
  if (tensor.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING || tensor.rank > HostTensor::most_dimensions ||
      value.GetTensorMemoryInfo().GetAllocatorName() != "Cpu") {
    return false;
  }
  std::copy(shape.begin(), shape.end(), tensor.shape.begin());
  tensor.data = value.GetTensorRawData();
  return true;
}

bool read(const Request& request, std::size_t input, HostTensor& tensor) {
  if (const HostTensor* known = request.inputs.known(input)) {
    tensor = *known;
    return true;
  }
  return read(request.inputs.values()[input], tensor);
}

// A tensor as rows: what lies before the axis, and the bytes of what lies behind it, for an index of the axis each.
struct Layout {
  std::size_t before = 1;
  std::size_t along = 0;
  std::size_t bytes_behind = 1;

  Layout(const HostTensor& tensor, std::size_t axis) : along(static_cast<std::size_t>(tensor.shape[axis])) {
    for (std::size_t i = 0; i < axis; ++i) {
      before *= static_cast<std::size_t>(tensor.shape[i]);
    }
    const std::vector<std::int64_t> behind(tensor.shape.begin() + static_cast<std::ptrdiff_t>(axis) + 1,
                                           tensor.shape.begin() + static_cast<std::ptrdiff_t>(tensor.rank));
    bytes_behind = tensor_bytes(tensor.type, behind);
  }
};

Ort::Value new_tensor_like(const HostTensor& tensor) {
  static const Ort::AllocatorWithDefaultOptions cpu;
  return Ort::Value::CreateTensor(cpu, tensor.shape.data(), tensor.rank, tensor.type);
}

// Types of fewer bits share bytes between rows.
bool has_whole_bytes(ONNXTensorElementDataType type) {
  const ElementType* known = find_element_type(type);
  return known != nullptr && known->bits >= 8;
}

std::size_t sum_of(const std::vector<std::size_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
}

// A dimension that has the same name in all inputs, so that requests can be joined along it.
std::optional<std::size_t> common_axis(const std::vector<ValueInfo>& inputs) {
  std::optional<std::vector<std::string>> names;  // of dimensions that may be it; empty where it is not
  for (const ValueInfo& input : inputs) {
    if (input.shape.empty()) {
      continue;
    }
    const auto& own = input.dimension_names;
    names = names.value_or(own);
    names->resize(std::min(names->size(), own.size()));
    for (std::size_t i = 0; i < names->size(); ++i) {
      (*names)[i] = (*names)[i] == own[i] ? own[i] : "";
    }
  }
  for (std::size_t i = 0; names && i < names->size(); ++i) {
    if (!(*names)[i].empty()) {
      return i;
    }
  }
  return std::nullopt;
}

// Of the first one that is traced, with the ids of all of them.
RequestTrace joint_trace(const Requests& requests) {
  RequestTrace joint;
  for (const auto& request : requests) {
    const auto& [timeline, id] = request->trace;
    if (!timeline) {
      continue;
    }
    joint.timeline = joint.timeline ? joint.timeline : timeline;
    joint.id += (joint.id.empty() || id.empty() ? "" : ", ") + id;
  }
  return joint;
}

}  // namespace

std::size_t Batching::padded(std::size_t size) const noexcept {
  const auto next = std::lower_bound(sizes.begin(), sizes.end(), size);
  return next == sizes.end() ? size : *next;
}

void Batching::check_inputs(const std::vector<ValueInfo>& inputs) const {
  if (!enabled()) {
    return;
  }
  constexpr std::int64_t none = -2;
  const ValueInfo* unfit = nullptr;
  std::set<std::int64_t> found;
  for (const ValueInfo& input : inputs) {
    if (input.shape.empty()) {
      continue;  // a scalar, or nobody knows
    }
    const std::int64_t size = axis < input.shape.size() ? input.shape[axis] : none;
    found.insert(size);
    if (size != -1 && unfit == nullptr) {
      unfit = &input;
    }
  }
  if (unfit == nullptr) {
    return;
  }
  const std::int64_t size = axis < unfit->shape.size() ? unfit->shape[axis] : none;
  const std::string text = std::to_string(size);
  const bool pads = found.size() == 1 && size > 1;
  if (pads && sizes == std::vector<std::size_t>{static_cast<std::size_t>(size)}) {
    return;  // to which every batch is padded
  }
  std::string advice;
  if (pads) {
    advice = ". Or pad every batch: Batching(max_size=" + text + ", sizes=[" + text + "])";
  } else if (const auto common = common_axis(inputs)) {
    advice = ". Or join along dimension " + std::to_string(*common) +
             ": Batching(max_size=" + std::to_string(max_size) + ", axis=" + std::to_string(*common) + ")";
  }
  throw Error(ErrorKind::invalid_argument,
              "batching joins requests along dimension " + std::to_string(axis) + ", but input '" + unfit->name + "' " +
                  (size == none ? "has no such dimension" : "has the fixed size " + text + " there") +
                  (found.size() == 1 ? "" : ", unlike other inputs") +
                  ": export the model with a dynamic dimension, or load it without batching" + advice);
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

BatchTraits batch_traits(const Request& request, std::size_t axis) {
  BatchTraits traits;
  if (request.outputs_on_device) {
    return traits;
  }
  const auto append = [&traits](std::int64_t number) {
    traits.key.append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  traits.key.reserve(128 * request.inputs.size());
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    HostTensor tensor;
    if (!read(request, i, tensor) || axis >= tensor.rank || !has_whole_bytes(tensor.type)) {
      return {};
    }
    const auto along = static_cast<std::size_t>(tensor.shape[axis]);
    if (along == 0 || (traits.size != 0 && along != traits.size)) {
      return {};
    }
    traits.size = along;
    tensor.shape[axis] = -1;  // any
    traits.key.append(request.inputs.names()[i]).append(1, '\0');
    append(tensor.type);
    append(static_cast<std::int64_t>(tensor.rank));
    traits.key.append(reinterpret_cast<const char*>(tensor.shape.data()), tensor.rank * sizeof(std::int64_t));
  }
  if (traits.size == 0) {
    return {};
  }
  for (const char* name : request.output_names) {
    traits.key.append(1, '\0').append(name);
  }
  return traits;
}

std::string why_unlike(const Request& one, const Request& other) {
  const auto shape_of = [](const HostTensor& tensor) {
    std::string text;
    for (std::size_t i = 0; i < tensor.rank; ++i) {
      text += (i == 0 ? "" : ", ") + std::to_string(tensor.shape[i]);
    }
    return "(" + text + (tensor.rank == 1 ? ",)" : ")");
  };
  for (std::size_t i = 0; i < std::min(one.inputs.size(), other.inputs.size()); ++i) {
    const std::string name = one.inputs.names()[i];
    HostTensor first;
    HostTensor second;
    if (name != other.inputs.names()[i] || !read(one, i, first) || !read(other, i, second)) {
      break;
    }
    if (first.type != second.type) {
      return "input '" + name + "' has several types";
    }
    if (shape_of(first) != shape_of(second)) {
      return "input '" + name + "' has the shapes " + shape_of(first) + " and " + shape_of(second);
    }
  }
  return "they give other inputs, or ask for other outputs";
}

std::shared_ptr<Request> join(const Requests& requests, const std::vector<std::size_t>& sizes,
                              const Batching& batching) {
  const std::size_t axis = batching.axis;
  const std::size_t size = sum_of(sizes);
  auto joint = std::make_shared<Request>();
  joint->trace = joint_trace(requests);
  joint->output_names = requests.front()->output_names;
  joint->endable = true;
  for (std::size_t i = 0; i < requests.front()->inputs.size(); ++i) {
    HostTensor whole;
    static_cast<void>(read(*requests.front(), i, whole));
    whole.shape[axis] = static_cast<std::int64_t>(batching.padded(size));
    Ort::Value value = new_tensor_like(whole);
    const Layout target(whole, axis);
    auto* to = static_cast<std::byte*>(value.GetTensorMutableRawData());
    std::size_t offset = 0;
    for (std::size_t k = 0; k < requests.size(); ++k) {
      const HostTensor* known = requests[k]->inputs.known(i);
      const auto* from = static_cast<const std::byte*>(
          known != nullptr ? known->data : requests[k]->inputs.values()[i].GetTensorRawData());
      const std::size_t row = sizes[k] * target.bytes_behind;
      for (std::size_t r = 0; r < target.before; ++r) {
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

void split(Request& joint, const Requests& requests, const std::vector<std::size_t>& sizes, const Batching& batching) {
  const std::size_t axis = batching.axis;
  const std::size_t whole_size = batching.padded(sum_of(sizes));
  const auto rows = std::make_shared<JointOutputs>();
  std::vector<HostTensor> wholes;
  std::size_t row_bytes = 0;
  bool in_rows = true;
  for (std::size_t o = 0; o < joint.outputs.size(); ++o) {
    HostTensor whole;
    const bool tensor = read(joint.outputs[o], whole);
    if (!tensor || axis >= whole.rank || static_cast<std::size_t>(whole.shape[axis]) != whole_size) {
      const char* reason = !tensor ? ": it is no numeric tensor in main memory (skl2onnx: export with zipmap=False)"
                           : axis >= whole.rank ? ": it has fewer dimensions"
                                                : ": it has another size there";
      throw Error(ErrorKind::invalid_argument, "output '" + std::string(joint.output_names[o]) + "' of a batch of " +
                                                   std::to_string(whole_size) + " cannot be split along dimension " +
                                                   std::to_string(axis) + reason +
                                                   "; load the model without batching, or ask for other outputs");
    }
    const Layout layout(whole, axis);
    row_bytes += layout.before * layout.bytes_behind;
    wholes.push_back(whole);
    in_rows = in_rows && layout.before == 1 && has_whole_bytes(whole.type);
    rows->tensors.push_back({whole.type,
                             {whole.shape.begin(), whole.shape.begin() + static_cast<std::ptrdiff_t>(whole.rank)},
                             static_cast<const std::byte*>(whole.data),
                             layout.bytes_behind});
  }
  constexpr std::size_t most_bytes = 4096;  // of a request: copied in less time than memory of its own is made in
  in_rows = in_rows && row_bytes * *std::max_element(sizes.begin(), sizes.end()) <= most_bytes &&
            std::all_of(requests.begin(), requests.end(), [](const auto& request) { return request->takes_rows; });
  if (in_rows) {
    rows->values = std::move(joint.outputs);
    std::size_t first = 0;
    for (std::size_t k = 0; k < requests.size(); ++k) {
      requests[k]->rows = {rows, first, sizes[k]};
      first += sizes[k];
    }
    return;
  }
  std::vector<std::vector<Ort::Value>> parts(requests.size());
  for (const HostTensor& whole : wholes) {
    const Layout source(whole, axis);
    const auto* from = static_cast<const std::byte*>(whole.data);
    std::size_t offset = 0;
    for (std::size_t k = 0; k < requests.size(); ++k) {
      HostTensor part = whole;
      part.shape[axis] = static_cast<std::int64_t>(sizes[k]);
      Ort::Value value = new_tensor_like(part);
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
