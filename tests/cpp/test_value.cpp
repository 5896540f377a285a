#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "core/base/error.hpp"
#include "core/onnx/element_types.hpp"
#include "core/ort/empty_sequence.hpp"
#include "core/ort/value.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

constexpr auto float32 = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;

TEST(TheBytesOfATensor, are_those_of_its_elements) {
  EXPECT_EQ(tensor_bytes(float32, {2, 3}), 24);
  EXPECT_EQ(tensor_bytes(float32, {}), 4);
  EXPECT_EQ(tensor_bytes(ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4, {3}), 2);
  EXPECT_EQ(tensor_bytes(ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, {7}), 14);
  EXPECT_EQ(tensor_bytes(float32, {std::numeric_limits<std::int64_t>::max(), 0, 4}), 0);
}

TEST(TheBytesOfATensor, have_to_fit_into_memory) {
  constexpr std::int64_t large = std::int64_t{1} << 61;
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{large}, {large, 16}, {large, large}}) {
    EXPECT_TRUE(throws(ErrorKind::invalid_argument, {"no memory has room"}, [&] { tensor_bytes(float32, shape); }));
  }
  EXPECT_TRUE(
      throws(ErrorKind::invalid_argument, {"no negative dimension: [2, -1]"}, [] { tensor_bytes(float32, {2, -1}); }));
  const auto int2 = static_cast<ONNXTensorElementDataType>(find_element_type(25)->number);  // older headers lack it
  EXPECT_EQ(tensor_bytes(int2, {5}), 2);
  EXPECT_EQ(tensor_bytes(ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX64, {2}), 16);
  EXPECT_TRUE(
      throws(ErrorKind::not_implemented, {"string"}, [] { tensor_bytes(ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, {2}); }));
}

class AValue : public RealSessions {};

TEST_F(AValue, on_a_gpu_says_so) {
  std::array<float, 2> memory{};  // which nobody reads
  const auto value = Value::over(memory.data(), float32, {2}, Device::cuda(3), nullptr);
  EXPECT_EQ(value->device(), Device::cuda(3));
}

class Declarations : public RealSessions {};

TEST_F(Declarations, HaveOnnxRuntimesSpellingAndTypesInTypes) {
  const auto session = make_session("types");
  std::map<std::string, std::string> types;
  for (const ValueInfo& output : session->outputs()) {
    types[output.name] = output.type;
    EXPECT_EQ(output.is_tensor, output.type.rfind("tensor(", 0) == 0);
    EXPECT_EQ(type_name(output.value_type), output.type);
  }
  const std::map<std::string, std::string> expected = {{"sequence", "seq(tensor(float))"},
                                                       {"maps", "seq(map(int64,tensor(float)))"},
                                                       {"optional", "optional(tensor(float))"},
                                                       {"strings", "tensor(string)"},
                                                       {"half", "tensor(float16)"}};
  EXPECT_EQ(types, expected);
}

class EmptySequence : public RealSessions {};

TEST_F(EmptySequence, IsRefusedOfATypeThatTheOperatorHasNot) {
  EXPECT_TRUE(throws({"an empty sequence of tensor(complex64)"},
                     [] { make_empty_sequence(OnnxRuntime::get(), ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX64); }));
}

}  // namespace
}  // namespace ortmulti::tests
