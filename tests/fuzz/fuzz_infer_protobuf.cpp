// Any bytes as a ModelInferRequest of gRPC: it is read, or refused once. Nothing is read beyond them, and what is kept
// is no more than they can say.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.hpp"
#include "core/serve/infer_grpc.hpp"
#include "require.hpp"

namespace {

using namespace ortmulti::serve;

constexpr std::size_t most_tensors = 4;

void check_input(const AskedInput& input, std::size_t size) {
  require(input.binary.size() <= size, "more data than bytes");
  if (input.form != AskedInput::Form::message || input.datatype == "BYTES") {
    return;
  }
  const SentValues values = count_contents(input);
  require(values.count <= size, "more values than bytes");
  std::vector<std::byte> tensor(values.count * sizeof(double));
  const auto type =
      input.datatype == "BOOL" ? ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL : ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE;
  ValueWriter writer(type, tensor.data(), values.count);
  read_contents(input, writer);
  require(writer.complete(), "a value was counted, and not written");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string message(reinterpret_cast<const char*>(data), size);  // its end is the memory's
  message.shrink_to_fit();
  try {
    GrpcRequest request = read_grpc(message, most_tensors);
    require(request.inputs.size() <= most_tensors && request.outputs.size() <= most_tensors &&
                request.raw.size() <= most_tensors,
            "too many are kept");
    require(is_utf8(request.id) && is_utf8(request.model), "a text that is not UTF-8");
    const Asked asked = check_grpc(std::move(request), most_tensors);
    for (const AskedInput& input : asked.inputs) {
      check_input(input, size);
    }
  } catch (const Refused& refused) {
    require(is_utf8(refused.text), "an answer that is not UTF-8");
  } catch (const ortmulti::Error& error) {
    require(error.kind() == ortmulti::ErrorKind::invalid_protobuf, "another error");
  }
  return 0;
}
