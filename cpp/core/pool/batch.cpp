#include "core/pool/batch.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "core/base/error.hpp"
#include "core/onnx/element_types.hpp"

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

Ort::Value new_tensor_like(const HostTensor& tensor) {
  static const Ort::AllocatorWithDefaultOptions cpu;
  return Ort::Value::CreateTensor(cpu, tensor.shape.data(), tensor.rank, tensor.type);
}

// Types of fewer bits share bytes between rows.
bool has_whole_bytes(ONNXTensorElementDataType type) {
  const ElementType* known = find_element_type(type);
  return known != nullptr && known->bits >= 8;
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

bool describe(const Request& request, std::size_t input, HostTensor& tensor) {
  if (const HostTensor* known = request.inputs.known(input)) {
    tensor = *known;
    return true;
  }
  return describe(request.inputs.values()[input], tensor);
}

JointSize sum_of(const std::vector<JointSize>& sizes) {
  JointSize all;
  for (const JointSize& size : sizes) {
    all.add(size);
  }
  return all;
}

std::size_t Batching::padded(std::size_t size) const noexcept {
  const auto next = std::ranges::lower_bound(sizes, size);
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

bool Batching::fits(const JointSize& run, std::size_t elements) const noexcept {
  if (run.rows > max_size || !padding) {
    return run.rows <= max_size;
  }
  const auto padded = static_cast<double>(elements - run.alone);
  return elements <= padding->max_tokens.value_or(elements) &&
         padded <= padding->max_waste * static_cast<double>(elements);
}

bool Batching::may_join(const JointSize& run, const JointSize& more, const RunCost& cost) const noexcept {
  JointSize joint = run;
  joint.add(more);
  const auto time = [&](const JointSize& size) { return cost.time(size.rows, rounded(size.longest)); };
  return fits(joint, joint.rows * rounded(joint.longest)) && (!padding || time(joint) <= time(run) + time(more));
}

bool Batching::is_full(const JointSize& run) const noexcept {
  return run.rows >= max_size ||
         (padding && padding->max_tokens && padding->elements(run) + rounded(run.longest) > *padding->max_tokens);
}

std::vector<std::size_t> Batching::choose(const std::vector<JointSize>& candidates, const RunCost& cost) const {
  std::vector<std::size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (!padding) {
    JointSize run;
    std::erase_if(order, [&](std::size_t one) {
      JointSize joint = run;
      joint.add(candidates[one]);
      const bool joins = one == 0 || fits(joint, 0);
      run = joins ? joint : run;
      return !joins;
    });
    return order;
  }
  std::ranges::stable_sort(order, {}, [&](std::size_t one) { return candidates[one].longest; });
  // Those that the run of the first candidate could reach. Of all ways to cut their order into runs, the one that takes
  // the least time: for each end of a run, its best begin.
  const auto first = std::ranges::find(order, std::size_t{0}) - order.begin();
  const auto reach = static_cast<std::ptrdiff_t>(max_size);
  const bool more_above = static_cast<std::ptrdiff_t>(order.size()) > first + reach;
  const bool more_below = first > reach;
  order.erase(order.begin() + (more_above ? first + reach : static_cast<std::ptrdiff_t>(order.size())), order.end());
  order.erase(order.begin(), order.begin() + (more_below ? first - reach : 0));
  const auto own = static_cast<std::size_t>(more_below ? reach : first);
  std::vector<double> least(order.size() + 1, 0);
  std::vector<std::size_t> begins(order.size() + 1, 0);
  for (std::size_t end = 1; end <= order.size(); ++end) {
    least[end] = std::numeric_limits<double>::infinity();
    const std::size_t length = padding->rounded(candidates[order[end - 1]].longest);
    RunCost::Times times(cost, length);
    const std::size_t full = std::max<std::size_t>(
        1, std::min(max_size, padding->max_tokens.value_or(max_size * length) / std::max<std::size_t>(1, length)));
    JointSize run;
    for (std::size_t begin = end; begin-- > 0;) {
      run.add(candidates[order[begin]]);
      if (begin + 1 < end && !fits(run, run.rows * length)) {
        break;
      }
      double time = times.of(run.rows);
      // At an edge behind which more waits, others will fill that run.
      if ((more_below && begin == 0 && end <= own) || (more_above && end == order.size() && begin > own)) {
        time = std::min(time, times.of(full) * static_cast<double>(run.rows) / static_cast<double>(full));
      }
      time += least[begin];
      if (begin + 1 == end || time < least[end]) {
        least[end] = time;
        begins[end] = begin;
      }
    }
  }
  std::size_t end = order.size();
  while (begins[end] > own) {
    end = begins[end];
  }
  std::vector<std::size_t> chosen(order.begin() + static_cast<std::ptrdiff_t>(begins[end]),
                                  order.begin() + static_cast<std::ptrdiff_t>(end));
  std::ranges::sort(chosen);
  return chosen;
}

BatchTraits batch_traits(const Request& request, const Batching& batching) {
  const std::size_t axis = batching.axis;
  BatchTraits traits;
  if (request.outputs_on_device) {
    return traits;
  }
  const auto append = [&traits](std::int64_t number) {
    traits.key.append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  traits.key.reserve(128 * request.inputs.size());
  std::string first_padded;
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    HostTensor tensor;
    if (!describe(request, i, tensor) || axis >= tensor.rank || !has_whole_bytes(tensor.type)) {
      return {};
    }
    const auto rows = static_cast<std::size_t>(tensor.shape[axis]);
    if (rows == 0 || (traits.size.rows != 0 && rows != traits.size.rows)) {
      return {};
    }
    traits.size.rows = rows;
    tensor.shape[axis] = -1;  // any
    const char* const name = request.inputs.names()[i];
    if (const auto* const padded = batching.padding ? Padding::find(batching.padding->inputs, name) : nullptr) {
      for (const std::size_t each : padded->axes) {
        if (each >= tensor.rank) {
          return {};
        }
        const auto length = static_cast<std::size_t>(tensor.shape[each]);
        if (length == 0 || (!first_padded.empty() && length != traits.size.longest)) {
          throw Error(ErrorKind::invalid_argument,
                      "input '" + std::string(name) + "' has the length " + std::to_string(length) + " along " +
                          batching.padding->dimension +
                          (length == 0 ? ": give 1 or more elements"
                                       : ", and input '" + first_padded + "' " + std::to_string(traits.size.longest) +
                                             ": give both the same length"));
        }
        first_padded = name;
        traits.size.longest = length;
        tensor.shape[each] = -1;
      }
    }
    traits.key.append(name).append(1, '\0');
    append(tensor.type);
    append(static_cast<std::int64_t>(tensor.rank));
    traits.key.append(reinterpret_cast<const char*>(tensor.shape.data()), tensor.rank * sizeof(std::int64_t));
  }
  if (traits.size.rows == 0) {
    return {};
  }
  traits.size.elements = traits.size.rows * traits.size.longest;
  traits.size.alone = traits.size.rows * batching.rounded(traits.size.longest);
  for (const char* name : request.output_names) {
    traits.key.append(1, '\0').append(name);
  }
  return traits;
}

std::string why_unlike(const Request& one, const Request& other) {
  for (std::size_t i = 0; i < std::min(one.inputs.size(), other.inputs.size()); ++i) {
    const std::string name = one.inputs.names()[i];
    HostTensor first;
    HostTensor second;
    if (name != other.inputs.names()[i] || !describe(one, i, first) || !describe(other, i, second)) {
      break;
    }
    if (first.type != second.type) {
      return "input '" + name + "' has several types";
    }
    if (shape_text(first) != shape_text(second)) {
      return "input '" + name + "' has the shapes " + shape_text(first) + " and " + shape_text(second);
    }
  }
  return "they give other inputs, or ask for other outputs";
}

std::shared_ptr<Request> join(const Requests& requests, const std::vector<JointSize>& sizes, const Batching& batching) {
  const std::size_t axis = batching.axis;
  const JointSize size = sum_of(sizes);
  JointSize run;
  run.rows = batching.padded(size.rows);
  run.longest = batching.rounded(size.longest);
  auto joint = std::make_shared<Request>();
  joint->trace = joint_trace(requests);
  joint->output_names = requests.front()->output_names;
  joint->endable = true;
  for (std::size_t i = 0; i < requests.front()->inputs.size(); ++i) {
    const char* const name = requests.front()->inputs.names()[i];
    const Padding* const padding = batching.padding.get();
    const Layout layout{padding == nullptr ? nullptr : Padding::find(padding->inputs, name), run.longest};
    HostTensor whole;
    static_cast<void>(describe(*requests.front(), i, whole));
    whole = layout.part(whole, axis, run);
    Ort::Value value = new_tensor_like(whole);
    auto* to = static_cast<std::byte*>(value.GetTensorMutableRawData());
    if (layout.padded != nullptr && size.rows * run.longest != size.elements) {
      fill(to, tensor_bytes(value) / layout.padded->value.size(), layout.padded->value);
    }
    std::size_t row = 0;
    for (std::size_t k = 0; k < requests.size(); ++k) {
      HostTensor own;
      static_cast<void>(describe(*requests[k], i, own));
      copy_block(own, own, static_cast<const std::byte*>(own.data), whole,
                 to + layout.begin(whole, axis, row, sizes[k], padding));
      row += sizes[k].rows;
    }
    // Values that occur, as the model may not take others.
    const HostTensor last = layout.part(whole, axis, {1, run.longest, 0, 0});
    const std::size_t step = steps_of(whole)[axis];
    for (; row < run.rows; ++row) {
      copy_block(last, whole, to + (size.rows - 1) * step, whole, to + row * step);
    }
    joint->inputs.add(name, std::move(value));
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
