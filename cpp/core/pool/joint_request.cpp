#include "core/pool/joint_request.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "core/base/error.hpp"
#include "core/cuda/copies.hpp"
#include "core/onnx/element_types.hpp"
#include "core/ort/value.hpp"
#include "core/pool/batch_traits.hpp"
#include "core/pool/gpu_session.hpp"

namespace ortmulti {
namespace {

// The bytes from one index of each dimension to the next.
std::array<std::size_t, HostTensor::max_dimensions> steps_of(const HostTensor& tensor) {
  std::array<std::size_t, HostTensor::max_dimensions> steps{};
  std::size_t step = find_element_type(tensor.type)->bits / 8;
  for (std::size_t i = tensor.rank; i-- > 0; step *= static_cast<std::size_t>(tensor.shape[i])) {
    steps[i] = step;
  }
  return steps;
}

// Copies a block of this shape. Its first elements are at `from` in a tensor like `source`, and at `to` in one like
// `target`.
void copy_block(const HostTensor& block, const HostTensor& source, const std::byte* from, const HostTensor& target,
                std::byte* to) {
  const auto size = [&block](std::size_t dimension) { return static_cast<std::size_t>(block.shape[dimension]); };
  const auto from_steps = steps_of(source);
  const auto to_steps = steps_of(target);
  std::size_t inner = block.rank - 1;  // what lies behind it is in one piece in both
  while (inner > 0 && block.shape[inner] == source.shape[inner] && block.shape[inner] == target.shape[inner]) {
    --inner;
  }
  std::size_t pieces = 1;
  for (std::size_t i = 0; i < inner; ++i) {
    pieces *= size(i);
  }
  const std::size_t bytes = size(inner) * from_steps[inner];
  std::array<std::size_t, HostTensor::max_dimensions> index{};
  for (std::size_t piece = 0; bytes > 0 && piece < pieces; ++piece) {
    std::memcpy(to, from, bytes);
    for (std::size_t i = inner; i-- > 0;) {
      from += from_steps[i];
      to += to_steps[i];
      if (++index[i] < size(i)) {
        break;
      }
      index[i] = 0;
      from -= size(i) * from_steps[i];
      to -= size(i) * to_steps[i];
    }
  }
}

std::size_t bytes_of(const HostTensor& tensor) {
  return steps_of(tensor)[0] * static_cast<std::size_t>(tensor.rank == 0 ? 1 : tensor.shape[0]);
}

Ort::Value new_tensor_like(const HostTensor& tensor) {
  static const Ort::AllocatorWithDefaultOptions cpu;
  return Ort::Value::CreateTensor(cpu, tensor.shape.data(), tensor.rank, tensor.type);
}

// What of a run's tensor belongs to its requests.
struct Layout {
  const Padding::PaddedTensor* padded;  // null: it has no length
  std::size_t length;                   // of the run

  // The shape of a request's part.
  HostTensor part(HostTensor whole, std::size_t axis, const JointSize& size) const {
    whole.shape[axis] = static_cast<std::int64_t>(size.rows);
    for (const std::size_t each : lengths()) {
      whole.shape[each] = static_cast<std::int64_t>(size.longest);
    }
    return whole;
  }
  // Where it begins, in bytes, behind so many rows.
  std::size_t begin(const HostTensor& whole, std::size_t axis, std::size_t row, const JointSize& size,
                    const Padding* padding) const {
    const auto steps = steps_of(whole);
    std::size_t bytes = row * steps[axis];
    for (const std::size_t each : lengths()) {
      bytes += padding->at_front ? (length - size.longest) * steps[each] : 0;
    }
    return bytes;
  }
  const std::vector<std::size_t>& lengths() const {
    static const std::vector<std::size_t> none;
    return padded == nullptr ? none : padded->axes;
  }
};

// Returns the trace of the first request that has one, with the ids of all traced requests.
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

std::shared_ptr<Request> join(const Requests& requests, const std::vector<JointSize>& sizes, const Batching& batching,
                              Runner* runner) {
  const std::size_t axis = batching.axis;
  const JointSize size = sum_of(sizes);
  JointSize run;
  run.rows = batching.padded(size.rows);
  run.longest = batching.rounded(size.longest);
  auto joint = std::make_shared<Request>();
  joint->trace = joint_trace(requests);
  joint->output_names = requests.front()->output_names;
  joint->endable = true;
  const Padding* const padding = batching.padding.get();
  const RunInputs& inputs = requests.front()->inputs;
  std::vector<Layout> layouts;
  std::vector<HostTensor> wholes;
  std::vector<std::size_t> begins{0};  // in one piece of memory
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    layouts.push_back({padding == nullptr ? nullptr : Padding::find(padding->inputs, inputs.names()[i]), run.longest});
    HostTensor whole;
    static_cast<void>(describe(*requests.front(), i, whole));
    wholes.push_back(layouts[i].part(whole, axis, run));
    begins.push_back(begins[i] + aligned(bytes_of(wholes[i])));
  }
  std::vector<std::size_t> firsts{0};  // rows
  for (const JointSize& own : sizes) {
    firsts.push_back(firsts.back() + own.rows);
  }
  const auto memory = runner == nullptr ? nullptr : runner->memory_for_inputs(begins.back());
  joint->pinned_inputs = memory;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Layout& layout = layouts[i];
    const HostTensor& whole = wholes[i];
    Ort::Value value = memory ? value_over(memory.get() + begins[i], whole.type, whole.shape.data(), whole.rank)
                              : new_tensor_like(whole);
    auto* to = static_cast<std::byte*>(value.GetTensorMutableRawData());
    if (layout.padded != nullptr && size.rows * run.longest != size.elements) {
      fill(to, tensor_bytes(value) / layout.padded->value.size(), layout.padded->value);
    }
    std::atomic<std::size_t> next{0};
    const auto copy_some = [&](int /*part*/) {
      for (std::size_t k = next++; k < requests.size(); k = next++) {
        HostTensor own;
        static_cast<void>(describe(*requests[k], i, own));
        copy_block(own, own, static_cast<const std::byte*>(own.data), whole,
                   to + layout.begin(whole, axis, firsts[k], sizes[k], padding));
      }
    };
    if (memory && bytes_of(whole) >= copy_shared_from) {
      share_copy(max_copy_helpers(), copy_some);
    } else {
      copy_some(0);
    }
    // Values that occur, as the model may not take others.
    const HostTensor last = layout.part(whole, axis, {1, run.longest, 0, 0});
    const std::size_t step = steps_of(whole)[axis];
    for (std::size_t row = size.rows; row < run.rows; ++row) {
      copy_block(last, whole, to + (size.rows - 1) * step, whole, to + row * step);
    }
    joint->inputs.add(inputs.names()[i], std::move(value));
  }
  return joint;
}

void split(Request& joint, const Requests& requests, const std::vector<JointSize>& sizes, const Batching& batching) {
  const std::size_t axis = batching.axis;
  const Padding* const padding = batching.padding.get();
  const JointSize size = sum_of(sizes);
  JointSize run;
  run.rows = batching.padded(size.rows);
  run.longest = batching.rounded(size.longest);
  const auto rows = std::make_shared<JointOutputs>();
  std::vector<std::pair<HostTensor, Layout>> wholes;
  std::size_t row_bytes = 0;
  std::size_t most_rows = 0;
  for (const JointSize& own : sizes) {
    most_rows = std::max(most_rows, own.rows);
  }
  bool in_rows = axis == 0;
  for (std::size_t o = 0; o < joint.outputs.size(); ++o) {
    const char* const name = joint.output_names[o];
    const Layout layout{padding == nullptr ? nullptr : Padding::find(padding->outputs, name), run.longest};
    HostTensor whole;
    const bool tensor = describe(joint.outputs[o], whole) && has_whole_bytes(whole.type);
    const auto has = [&whole](std::size_t dimension, std::size_t wanted) {
      return dimension < whole.rank && static_cast<std::size_t>(whole.shape[dimension]) == wanted;
    };
    const auto& lengths = layout.lengths();
    const bool cut = std::ranges::all_of(lengths, [&](std::size_t each) { return has(each, run.longest); });
    if (!tensor || !has(axis, run.rows) || !cut) {
      const char* reason = !tensor ? ": it is no numeric tensor in main memory (skl2onnx: export with zipmap=False)"
                           : axis >= whole.rank ? ": it has fewer dimensions"
                                                : ": it has another size there";
      throw Error(ErrorKind::invalid_argument,
                  "output '" + std::string(name) + "' of a batch of " + std::to_string(run.rows) +
                      (tensor && has(axis, run.rows) ? " cannot be cut along " + padding->dimension
                                                     : " cannot be split along dimension " + std::to_string(axis)) +
                      reason + "; load the model without batching, or ask for other outputs");
    }
    const std::size_t step = steps_of(whole)[axis];
    in_rows = in_rows && step * run.rows == tensor_bytes(joint.outputs[o]) &&
              (layout.padded == nullptr || size.elements == size.rows * run.longest);
    row_bytes += tensor_bytes(joint.outputs[o]) / run.rows;
    wholes.emplace_back(whole, layout);
    rows->tensors.push_back({whole.type,
                             {whole.shape.begin(), whole.shape.begin() + static_cast<std::ptrdiff_t>(whole.rank)},
                             static_cast<const std::byte*>(whole.data),
                             step});
  }
  constexpr std::size_t max_bytes = 4096;  // of a request: copied in less time than memory of its own is made in
  in_rows = in_rows && row_bytes * most_rows <= max_bytes &&
            std::ranges::all_of(requests, [](const auto& request) { return request->takes_rows; });
  if (in_rows) {
    rows->values = std::move(joint.outputs);
    std::size_t first = 0;
    for (std::size_t k = 0; k < requests.size(); ++k) {
      requests[k]->rows = {rows, first, sizes[k].rows};
      first += sizes[k].rows;
    }
    return;
  }
  std::vector<std::vector<Ort::Value>> parts(requests.size());
  for (const auto& [whole, layout] : wholes) {
    const auto* from = static_cast<const std::byte*>(whole.data);
    std::size_t row = 0;
    for (std::size_t k = 0; k < requests.size(); ++k) {
      const HostTensor part = layout.part(whole, axis, sizes[k]);
      Ort::Value value = new_tensor_like(part);
      copy_block(part, whole, from + layout.begin(whole, axis, row, sizes[k], padding), part,
                 static_cast<std::byte*>(value.GetTensorMutableRawData()));
      row += sizes[k].rows;
      parts[k].push_back(std::move(value));
    }
  }
  for (std::size_t k = 0; k < requests.size(); ++k) {
    requests[k]->outputs = std::move(parts[k]);
  }
}

}  // namespace ortmulti
