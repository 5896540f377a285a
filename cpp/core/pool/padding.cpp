#include "core/pool/padding.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/error.hpp"

namespace ortmulti {

void JointSize::add(const JointSize& more) noexcept {
  rows += more.rows;
  longest = std::max(longest, more.longest);
  elements += more.elements;
  alone += more.alone;
}

JointSize sum_of(const std::vector<JointSize>& sizes) {
  JointSize all;
  for (const JointSize& size : sizes) {
    all.add(size);
  }
  return all;
}

std::size_t Padding::rounded(std::size_t length) const noexcept {
  const auto next = std::ranges::lower_bound(lengths, length);
  return next != lengths.end() ? *next : (length + multiple - 1) / multiple * multiple;
}

const Padding::PaddedTensor* Padding::find(const std::vector<PaddedTensor>& tensors, const char* name) noexcept {
  const auto found = std::ranges::find(tensors, name, &PaddedTensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

std::vector<std::int64_t> Padding::mask_shape(const RunInputs& given) const {
  const auto& names = given.names();
  if (mask.empty() || std::ranges::any_of(names, [this](const char* name) { return mask == name; })) {
    return {};
  }
  const PaddedTensor* const made = find(inputs, mask.c_str());
  for (std::size_t i = 0; i < names.size(); ++i) {
    const PaddedTensor* const padded = find(inputs, names[i]);
    const HostTensor* const like = given.known(i);
    if (padded == nullptr || like == nullptr || axis >= like->rank || padded->axes.front() >= like->rank) {
      continue;
    }
    const std::int64_t length = like->shape[padded->axes.front()];
    const auto* const begin = like->shape.data();
    if (std::count(begin, begin + like->rank, 0) != 0 && length != 0 && like->shape[axis] != 0) {
      continue;  // another dimension is 0
    }
    std::vector<std::int64_t> shape(made->axes.size() + 1, length);
    shape[axis] = like->shape[axis];
    return shape;
  }
  throw Error(ErrorKind::invalid_argument, "the mask '" + mask +
                                               "' is made from an array with the batch's dimension and " + dimension +
                                               " that is not empty, and the request has none: give one, or the mask");
}

void Padding::add_mask(RunInputs& given, const std::vector<std::int64_t>& shape) const {
  Ort::Value ones = new_tensor(mask_type, shape);
  fill(static_cast<std::byte*>(ones.GetTensorMutableRawData()), tensor_bytes(ones) / mask_one.size(), mask_one);
  given.add(find(inputs, mask.c_str())->name.c_str(), std::move(ones));
}

void fill(std::byte* begin, std::size_t count, const std::vector<std::byte>& value) noexcept {
  if (count == 0) {
    return;
  }
  std::size_t done = value.size();
  const std::size_t all = count * value.size();
  std::memcpy(begin, value.data(), done);
  while (done < all) {
    const std::size_t more = std::min(done, all - done);
    std::memcpy(begin + done, begin, more);
    done += more;
  }
}

}  // namespace ortmulti
