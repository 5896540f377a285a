#include "core/pool/audit.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <sstream>

#include "core/onnx/element_types.hpp"
#include "core/pool/batch_traits.hpp"
#include "core/pool/joint_request.hpp"

namespace ortmulti {
namespace {

using ReadNumber = double (*)(const void* data, std::size_t index);

template <typename Type>
double number(const void* data, std::size_t index) {
  const auto value = static_cast<const Type*>(data)[index];
  if constexpr (std::is_same_v<Type, Ort::Float16_t> || std::is_same_v<Type, Ort::BFloat16_t>) {
    return static_cast<double>(value.ToFloat());
  } else {
    return static_cast<double>(value);
  }
}

// A byte's place in the order of the numbers that it stands for, sign and magnitude.
double place_of_float8(const void* data, std::size_t index) {
  const auto bits = static_cast<const std::uint8_t*>(data)[index];
  const auto magnitude = static_cast<int>(bits & 0x7fU);
  return (bits & 0x80U) != 0 ? -magnitude : magnitude;
}

struct Rounding {
  ReadNumber number = nullptr;  // null: it is compared by its bits
  double share = 0;             // of the largest value, by which runs of several sizes may round differently
  double apart = 0;             // by which two numbers may always differ
};

Rounding rounding_of(ONNXTensorElementDataType type) {
  // Kernels of other sizes add up in another order, on GPUs with numbers of 10 bits (TF32): check_batching has the
  // same share. Of short types an element's own rounding is added.
  constexpr double of_runs = 0.01;
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
      return {number<float>, of_runs};
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE:
      return {number<double>, of_runs};
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
      return {number<Ort::Float16_t>, 2 * of_runs};
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
      return {number<Ort::BFloat16_t>, 5 * of_runs};
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FNUZ:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2FNUZ:
      return {place_of_float8, 0, 2};
    default:
      return {};
  }
}

std::size_t elements_of(const HostTensor& tensor) {
  std::size_t count = 1;
  for (std::size_t i = 0; i < tensor.rank; ++i) {
    count *= static_cast<std::size_t>(tensor.shape[i]);
  }
  return count;
}

// False for what is no tensor in the host's memory.
bool read_output(const Request& request, std::size_t output, HostTensor& tensor) {
  if (!request.rows.outputs) {
    return describe(request.outputs.at(output), tensor);
  }
  const JointOutputs::Output& whole = request.rows.outputs->tensors.at(output);
  tensor.type = whole.type;
  tensor.rank = whole.shape.size();
  std::ranges::copy(whole.shape, tensor.shape.begin());
  tensor.shape[0] = static_cast<std::int64_t>(request.rows.count);
  tensor.data = whole.data + request.rows.first * whole.row_bytes;
  return true;
}

// The largest magnitude of the floating-point inputs. Numbers that cancel out leave an error in proportion to it.
double largest_input(const Request& request) {
  double largest = 0;
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    HostTensor tensor;
    if (!describe(request, i, tensor)) {
      continue;
    }
    if (const Rounding rounding = rounding_of(tensor.type); rounding.share > 0) {
      for (std::size_t at = 0, count = elements_of(tensor); at < count; ++at) {
        const double value = std::abs(rounding.number(tensor.data, at));
        largest = std::isfinite(value) ? std::max(largest, value) : largest;
      }
    }
  }
  return largest;
}

// Numbers that are far larger than the others, such as those of masked places, would hide how far these are apart. So
// each such group is compared by its own largest one.
class Groups {
 public:
  void add(double size) {
    if (size > 0) {
      double& largest = largest_[std::ilogb(size)];
      largest = std::max(largest, size);
    }
  }
  // To be called once, after all were added.
  void cut() {
    constexpr int large = 13;  // from 8,192 on
    constexpr int gap = 5;     // 16 times the next smaller one, at least
    for (auto each = largest_.rbegin(); each != largest_.rend(); ++each) {
      const auto smaller = std::next(each);
      if (smaller != largest_.rend() && (each->first < large || each->first < smaller->first + gap)) {
        smaller->second = std::max(smaller->second, each->second);
        each->second = 0;  // of the group of the smaller one
      }
    }
  }
  // The largest one of the group that a number of this size belongs to.
  double largest(double size) const {
    auto found = size > 0 ? largest_.upper_bound(std::ilogb(size)) : largest_.end();
    while (found != largest_.begin()) {
      --found;
      if (found->second > 0) {
        return found->second;
      }
    }
    return largest_.empty() ? 0 : largest_.begin()->second;
  }

 private:
  std::map<int, double> largest_;  // by binary exponent
};

// By how much numbers of a type differ.
struct Numbers {
  std::size_t differing = 0;
  double most = 0;       // of those that differ
  double largest = 0;    // of the same group
  bool in_kind = false;  // NaN or infinity on one side alone
};

Numbers compare_numbers(const Rounding& rounding, const void* joined, const void* alone, std::size_t count,
                        double floor) {
  Groups groups;
  for (std::size_t at = 0; at < count; ++at) {
    const double one = std::abs(rounding.number(joined, at));
    const double other = std::abs(rounding.number(alone, at));
    if (std::isfinite(one) && std::isfinite(other)) {
      groups.add(std::max(one, other));
    }
  }
  groups.cut();
  Numbers found;
  for (std::size_t at = 0; at < count; ++at) {
    const double one = rounding.number(joined, at);
    const double other = rounding.number(alone, at);
    if (std::isfinite(one) && std::isfinite(other)) {
      const double apart = std::abs(one - other);
      if (apart <= std::max(floor, rounding.apart)) {
        continue;
      }
      const double largest = groups.largest(std::max(std::abs(one), std::abs(other)));
      if (apart > rounding.share * largest) {
        ++found.differing;
        if (apart * found.largest >= found.most * largest) {
          found.most = apart;
          found.largest = largest;
        }
      }
    } else if (one != other && !(std::isnan(one) && std::isnan(other))) {
      found.in_kind = true;
      ++found.differing;
    }
  }
  return found;
}

// `request`: which was answered alone.
Difference compare_values(const std::string& name, const HostTensor& joined, const HostTensor& alone,
                          const Request& request) {
  const std::size_t count = elements_of(joined);
  const std::size_t each = find_element_type(joined.type)->bits / 8;
  if (count == 0 || std::memcmp(joined.data, alone.data, count * each) == 0) {
    return {};
  }
  const Rounding rounding = rounding_of(joined.type);
  Numbers found;
  if (rounding.number == nullptr) {
    const auto* const one = static_cast<const std::byte*>(joined.data);
    const auto* const other = static_cast<const std::byte*>(alone.data);
    for (std::size_t at = 0; at < count; ++at) {
      found.differing += std::memcmp(one + at * each, other + at * each, each) != 0 ? 1 : 0;
    }
  } else {
    const double floor = rounding.share > 0 ? 1e-6 * largest_input(request) : 0;
    found = compare_numbers(rounding, joined.data, alone.data, count, floor);
  }
  if (found.differing == 0) {
    return {};
  }
  std::ostringstream text;
  text << "output '" << name << "' of a joint run differs from the answer to the request alone";
  if (found.in_kind) {
    text << ": NaN or infinity is in one of them";
  } else if (rounding.share > 0) {
    text << " by " << found.most << ", and its largest value is " << found.largest;
  } else {
    text << " in " << found.differing << " of " << count << " elements";
  }
  return {text.str(), false, rounding.number != nullptr, 2 * found.differing >= count};
}

}  // namespace

Difference compare(const Request& joined, const Request& alone, const std::set<std::string>& random) {
  for (std::size_t o = 0; o < joined.output_names.size(); ++o) {
    const std::string name = joined.output_names[o];
    HostTensor one;
    HostTensor other;
    if (!read_output(joined, o, one) || !read_output(alone, o, other)) {
      return {"output '" + name + "' of a run alone is no numeric tensor in main memory", true};
    }
    const auto* const end = one.shape.begin() + static_cast<std::ptrdiff_t>(one.rank);
    if (one.type != other.type || one.rank != other.rank ||
        !std::equal(static_cast<const std::int64_t*>(one.shape.begin()), end, other.shape.begin())) {
      return {"output '" + name + "' has the shape " + shape_text(other) + " alone, and a part of the shape " +
                  shape_text(one) + " in a joint run",
              true};
    }
    if (random.contains(name)) {
      continue;
    }
    if (Difference found = compare_values(name, one, other, alone)) {
      return found;
    }
  }
  return {};
}

bool alike(const Requests& requests) {
  const Request& first = *requests.front();
  for (std::size_t input = 0; input < first.inputs.size(); ++input) {
    HostTensor one;
    static_cast<void>(describe(first, input, one));
    const std::size_t bytes = elements_of(one) * (find_element_type(one.type)->bits / 8);
    for (const auto& request : requests) {
      HostTensor other;
      static_cast<void>(describe(*request, input, other));
      if (one.shape != other.shape || std::memcmp(one.data, other.data, bytes) != 0) {
        return false;
      }
    }
  }
  return requests.size() > 1;
}

std::shared_ptr<Request> copy_alone(const std::shared_ptr<Request>& request, const JointSize& size,
                                    const Batching& batching) {
  Batching plain;
  plain.axis = batching.axis;
  return join({request}, {size}, plain);
}

namespace {

// So that one request's run has the shape of the run of all.
Batching filling(const std::vector<JointSize>& sizes, const Batching& batching) {
  const JointSize all = sum_of(sizes);
  Batching filled = batching;
  filled.sizes = {batching.padded(all.rows)};
  if (batching.padding) {
    Padding padding = *batching.padding;
    padding.lengths = {batching.rounded(all.longest)};
    filled.padding = std::make_shared<const Padding>(std::move(padding));
  }
  return filled;
}

}  // namespace

std::shared_ptr<Request> copy_in_size_of(const std::shared_ptr<Request>& request, const JointSize& size,
                                         const std::vector<JointSize>& sizes, const Batching& batching) {
  return join({request}, {size}, filling(sizes, batching));
}

std::shared_ptr<Request> part_of(Request& run, const JointSize& size, const std::vector<JointSize>& sizes,
                                 const Batching& batching) {
  auto part = std::make_shared<Request>();
  part->output_names = run.output_names;
  split(run, {part}, {size}, filling(sizes, batching));
  return part;
}

}  // namespace ortmulti
