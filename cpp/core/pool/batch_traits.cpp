#include "core/pool/batch_traits.hpp"

#include <algorithm>
#include <cstdint>

#include "core/base/error.hpp"
#include "core/onnx/element_types.hpp"

namespace ortmulti {

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

bool describe(const Request& request, std::size_t input, HostTensor& tensor) {
  if (const HostTensor* known = request.inputs.known(input)) {
    tensor = *known;
    return true;
  }
  return describe(request.inputs.values()[input], tensor);
}

bool has_whole_bytes(ONNXTensorElementDataType type) {
  const ElementType* known = find_element_type(type);
  return known != nullptr && known->bits >= 8;
}

}  // namespace ortmulti
