#include "core/pool/graph_proof.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>

#include "core/base/error.hpp"
#include "core/ort/value.hpp"
#include "core/policy/numbers.hpp"
#include "core/pool/captured_runner.hpp"
#include "core/pool/captured_session.hpp"
#include "core/pool/request.hpp"

namespace ortmulti {
namespace {

/// Makes a request of copies, and of the session's outputs.
class SampleRequest : public Request {
 public:
  SampleRequest(const ShapeGraphs::Tensors& sample, const Session& session, bool reversed) {
    inputs.reserve(sample.size());
    for (const auto& [name, value] : sample) {
      inputs.add(name.c_str(), copy(value, reversed));
    }
    for (const ValueInfo& output : session.outputs()) {
      output_names.push_back(output.name.c_str());
    }
  }

 private:
  // In the reverse order the elements are others, and still what the model takes: indices, masks.
  static Ort::Value copy(const Ort::Value& value, bool reversed) {
    const auto info = value.GetTensorTypeAndShapeInfo();
    Ort::Value made = new_tensor(info.GetElementType(), info.GetShape());
    const std::size_t count = info.GetElementCount();
    const std::size_t bytes = tensor_bytes(value);
    const std::size_t each = count == 0 ? 0 : bytes / count;
    const auto* const from = static_cast<const std::byte*>(value.GetTensorRawData());
    auto* const to = static_cast<std::byte*>(made.GetTensorMutableRawData());
    for (std::size_t i = 0; i < count; ++i) {
      std::copy_n(from + (reversed ? count - 1 - i : i) * each, each, to + i * each);
    }
    return made;
  }
};

// Numbers of a floating-point type; nothing for others.
std::optional<std::vector<double>> to_numbers(const Ort::Value& value) {
  const std::size_t count = value.GetTensorTypeAndShapeInfo().GetElementCount();
  std::vector<double> numbers(count);
  const auto fill = [&](const auto* from, const auto& convert) {
    std::transform(from, from + count, numbers.begin(), convert);
  };
  const auto as_float = [](const auto& number) { return number.ToFloat(); };
  const auto as_it_is = [](const auto& number) { return number; };
  switch (value.GetTensorTypeAndShapeInfo().GetElementType()) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
      fill(value.GetTensorData<float>(), as_it_is);
      return numbers;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE:
      fill(value.GetTensorData<double>(), as_it_is);
      return numbers;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
      fill(value.GetTensorData<Ort::Float16_t>(), as_float);
      return numbers;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
      fill(value.GetTensorData<Ort::BFloat16_t>(), as_float);
      return numbers;
    default:
      return std::nullopt;
  }
}

bool is_close(const Ort::Value& value, const Ort::Value& expected) {
  const std::optional<std::vector<double>> wanted = to_numbers(expected);
  const std::optional<std::vector<double>> numbers = to_numbers(value);
  if (!wanted || !numbers || wanted->size() != numbers->size()) {
    return same_bits(value, expected);
  }
  double largest = 0;
  double difference = 0;
  for (std::size_t i = 0; i < wanted->size(); ++i) {
    const double one = (*wanted)[i];
    const double other = (*numbers)[i];
    if (std::isfinite(one) && std::isfinite(other)) {
      largest = std::max(largest, std::abs(one));
      difference = std::max(difference, std::abs(one - other));
    } else if (one != other && !(std::isnan(one) && std::isnan(other))) {
      return false;
    }
  }
  return difference <= *numbers::graphs_tolerance * largest;
}

void check_close(const ShapeGraphs::Tensors& expected, const std::vector<const char*>& names,
                 const std::vector<Ort::Value>& outputs) {
  for (const auto& [name, value] : expected) {
    const auto found = std::ranges::find(names, name);
    if (found == names.end() || !is_close(outputs[static_cast<std::size_t>(found - names.begin())], value)) {
      throw Error(ErrorKind::not_implemented, "the output '" + name + "' is another one with fixed shapes");
    }
  }
}

}  // namespace

ShapeGraphs::GraphSessions capture_graphs(const ShapeGraphs::Sample& sample,
                                          const std::vector<std::shared_ptr<Session>>& made,
                                          const std::function<std::string()>& why_not) {
  ShapeGraphs::GraphSessions graphs;
  std::uint64_t bytes = made.size() * *numbers::graphs_handle_bytes;
  std::vector<std::shared_ptr<CapturedSession>> shared;
  shared.reserve(made.size());
  for (const auto& session : made) {
    shared.push_back(std::make_shared<CapturedSession>(session));
  }
  graphs.runners.resize(made.size());
  for (std::size_t i = 0; i < *numbers::graphs_runners; ++i) {
    for (std::size_t number = 0; number < shared.size(); ++number) {
      SampleRequest one(sample.inputs, *made[number], false);
      SampleRequest other(sample.inputs, *made[number], true);
      const auto runner = std::make_shared<CapturedRunner>(shared[number]);
      if (const std::string reason = why_not(); !reason.empty()) {
        throw Error(ErrorKind::fail, reason);
      }
      check_close(sample.outputs, one.output_names, runner->prove(one, other));
      bytes += runner->graph_bytes();
      graphs.runners[number].push_back(runner);
    }
  }
  for (const auto& session : made) {
    const auto arena = session->arena();
    bytes += arena ? arena->held : 0;
  }
  graphs.bytes_of_each = bytes / made.size();
  return graphs;
}

}  // namespace ortmulti
