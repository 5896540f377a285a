#include "core/create/external_weights.hpp"

#include <utility>
#include <vector>

#include "core/base/source.hpp"
#include "core/ort/value.hpp"
#include "core/weights/plan.hpp"

namespace ortmulti {

WeightList take_external_weights(SessionOptions& options, std::uint64_t min_bytes) {
  WeightList list;
  std::vector<ModelAdditions::NamedValue> staying;
  for (ModelAdditions::NamedValue& each : options.additions.external_initializers) {
    const auto& [name, value] = each;
    const auto info = value->GetTensorTypeAndShapeInfo();
    const auto type = static_cast<int>(info.GetElementType());  // ONNX's number is the same
    const std::vector<std::int64_t> shape = info.GetShape();
    const std::uint64_t bytes = tensor_bytes(*value);
    if (bytes < min_bytes || device_of(value->GetTensorMemoryInfo()).is_cuda() ||
        !tensor_problem(name, type, shape, bytes).empty()) {
      staying.push_back(std::move(each));
      continue;
    }
    list.weights.push_back({name, type, shape, list.sources.size(), 0, bytes});
    const auto* data = static_cast<const unsigned char*>(value->GetTensorRawData());
    list.sources.push_back(memory_source("the value of " + name, {value, data}, bytes));
  }
  options.additions.external_initializers = std::move(staying);
  return list;
}

void add_external_weights(SessionOptions& options, const WeightList& list) {
  const auto memory = in_memory(list);
  for (std::size_t i = 0; i < list.weights.size(); ++i) {
    const Weight& weight = list.weights[i];
    const auto value = Value::over(memory[i].get(), static_cast<ONNXTensorElementDataType>(weight.data_type),
                                   weight.shape, Device::cpu(), memory[i], false);
    options.additions.external_initializers.push_back({weight.name, {value, &value->get()}});
  }
}

}  // namespace ortmulti
