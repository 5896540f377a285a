// Any bytes as the JSON of an inference request: it is read twice, or refused once. Values are written within their
// tensor alone, and what is kept is no more than the bytes can say.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/serve/json_request.hpp"
#include "require.hpp"

namespace {

using namespace ortmulti::serve;

void check_values(std::string_view text, const JsonRequest& request, ONNXTensorElementDataType type) {
  constexpr std::size_t largest = 8;
  std::vector<std::vector<std::byte>> memory;
  std::vector<ValueWriter> writers;
  writers.reserve(request.input.size());
  for (const JsonRequest::Input& input : request.input) {
    std::vector<std::byte>& tensor = memory.emplace_back(input.values.count * largest);
    writers.emplace_back(type, tensor.data(), input.values.count);
  }
  std::vector<ValueWriter*> each;
  for (ValueWriter& writer : writers) {
    each.push_back(&writer);
  }
  read_json_values(text, each);
  const bool objects = std::ranges::all_of(
      request.input, [](const JsonRequest::Input& input) { return input.self.is(SentValue::Kind::object); });
  for (std::size_t i = 0; i < writers.size(); ++i) {
    const SentValues& values = request.input[i].values;
    const bool numbers =
        objects && request.input[i].data.is(SentValue::Kind::list) && !values.uneven && values.count > 0 &&
        values.only(SentValues::bit(SentValue::Kind::integer) | SentValues::bit(SentValue::Kind::real));
    require(!numbers || type != ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE || writers[i].complete(),
            "a value was counted, and not written");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  constexpr std::size_t most_tensors = 4;
  try {
    const JsonRequest request = read_json(text, most_tensors);
    require(request.input.size() <= most_tensors && request.output.size() <= most_tensors, "too many are kept");
    for (const JsonRequest::Input& input : request.input) {
      require(input.values.count <= size && input.values.characters <= size, "more values than bytes");
      require(input.sizes.sizes.size() <= SentShape::max_dimensions, "too many dimensions are kept");
      static_cast<void>(input.sizes.text());
    }
    check_values(text, request, ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE);
    check_values(text, request, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16);
    check_values(text, request, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8);
    check_values(text, request, ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL);
  } catch (const Refused& refused) {
    require(is_utf8(refused.text), "an answer that is not UTF-8");
  }
  return 0;
}
