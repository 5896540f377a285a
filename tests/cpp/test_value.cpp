#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.hpp"
#include "core/onnx/element_types.hpp"
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
  EXPECT_TRUE(throws(ErrorKind::not_implemented, {"complex64"},
                     [] { tensor_bytes(ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX64, {2}); }));
  EXPECT_TRUE(
      throws(ErrorKind::not_implemented, {"string"}, [] { tensor_bytes(ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, {2}); }));
}

class AValue : public RealSessions {};

TEST_F(AValue, is_over_memory_that_its_owner_has) {
  auto memory = std::make_shared<std::array<float, 6>>();
  const std::weak_ptr<std::array<float, 6>> watched = memory;
  float* const data = memory->data();
  auto value = Value::over(data, float32, {2, 3}, Device::cpu(), std::move(memory));
  EXPECT_EQ(value->data(), data);
  EXPECT_EQ(value->type(), "tensor(float)");
  EXPECT_EQ(value->shape(), (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(value->device(), Device::cpu());
  EXPECT_TRUE(value->contains(data + 5));
  EXPECT_FALSE(value->contains(data + 6));
  EXPECT_FALSE(watched.expired());
  value.reset();
  EXPECT_TRUE(watched.expired());
}

TEST_F(AValue, on_a_gpu_says_so) {
  std::array<float, 2> memory{};  // which nobody reads
  const auto value = Value::over(memory.data(), float32, {2}, Device::cuda(3), nullptr);
  EXPECT_EQ(value->device(), Device::cuda(3));
}

TEST_F(AValue, is_copied_where_it_may_be_written_and_has_as_many_bytes) {
  std::array<float, 2> first{1, 2};
  std::array<float, 2> second{};
  const auto source = Value::over(first.data(), float32, {2}, Device::cpu(), nullptr, false);
  const auto target = Value::over(second.data(), float32, {1, 2}, Device::cpu(), nullptr);
  target->copy_from(*source);
  EXPECT_EQ(second, first);
  EXPECT_TRUE(throws(ErrorKind::invalid_argument, {"read-only"}, [&] { source->copy_from(*target); }));
  const auto longer = Value::allocate(float32, {3}, Device::cpu());
  EXPECT_TRUE(throws(ErrorKind::invalid_argument, {"12 bytes", "8"}, [&] { target->copy_from(*longer); }));
}

TEST_F(AValue, that_is_empty_is_no_tensor) {
  const Value value(Ort::Value{nullptr});
  EXPECT_FALSE(value.has_value() || value.is_tensor() || value.is_sparse_tensor() || value.is_sequence_of_tensors());
  EXPECT_FALSE(value.contains(&value));
  EXPECT_TRUE(throws(ErrorKind::invalid_type, {"empty"}, [&] { value.shape(); }));
  EXPECT_TRUE(throws(ErrorKind::invalid_argument, {"empty"}, [&] { value.type(); }));
}

TEST_F(AValue, of_strings_has_no_address) {
  const auto value = Value::allocate(ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, {2}, Device::cpu());
  EXPECT_EQ(value->get().GetStringTensorElement(1), "");
  EXPECT_TRUE(throws(ErrorKind::invalid_type, {"no address"}, [&] { value->data(); }));
  EXPECT_TRUE(throws(ErrorKind::not_implemented, {"cuda:1"},
                     [] { Value::allocate(ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, {2}, Device::cuda(1)); }));
}

class Declarations : public RealSessions {};

TEST_F(Declarations, SpellTypesAsOnnxRuntimeDoes) {
  const auto session = make_session("types");
  std::map<std::string, std::string> types;
  for (const ValueInfo& output : session->outputs()) {
    types[output.name] = output.type;
    EXPECT_EQ(output.is_tensor, output.type.rfind("tensor(", 0) == 0);
  }
  const std::map<std::string, std::string> expected = {{"sequence", "seq(tensor(float))"},
                                                       {"maps", "seq(map(int64,tensor(float)))"},
                                                       {"optional", "optional(tensor(float))"},
                                                       {"strings", "tensor(string)"},
                                                       {"half", "tensor(float16)"}};
  EXPECT_EQ(types, expected);
}

TEST_F(Declarations, HaveTypesInTypes) {
  const auto session = make_session("types");
  for (const ValueInfo& output : session->outputs()) {
    EXPECT_EQ(type_name(output.value_type), output.type);
    if (output.name == "maps") {
      EXPECT_EQ(output.value_type.kind, ONNX_TYPE_SEQUENCE);
      const ValueType& map = output.value_type.of.at(0);
      EXPECT_EQ(map.kind, ONNX_TYPE_MAP);
      EXPECT_EQ(map.element_type, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64);
      EXPECT_EQ(map.of.at(0).element_type, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
    }
  }
}

TEST_F(Declarations, HaveShapesAndNamesOfDimensions) {
  const auto session = make_session("add");
  ASSERT_EQ(session->inputs().size(), 1U);
  const ValueInfo& x = session->inputs()[0];
  EXPECT_EQ(x.name, "x");
  EXPECT_EQ(x.type, "tensor(float)");
  EXPECT_TRUE(x.is_tensor);
  EXPECT_EQ(x.element_type, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
  EXPECT_EQ(x.shape, (std::vector<std::int64_t>{-1, 3}));
  EXPECT_EQ(x.dimension_names, (std::vector<std::string>{"batch", ""}));
  ASSERT_EQ(session->outputs().size(), 2U);
  EXPECT_EQ(session->outputs()[0].name, "sum");
  EXPECT_EQ(session->outputs()[1].name, "difference");

  const auto count = make_session("count");  // a scalar
  EXPECT_TRUE(count->inputs().at(0).shape.empty());
  EXPECT_TRUE(count->inputs().at(0).dimension_names.empty());
  const auto reshape = make_session("reshape");  // open dimensions without a name
  EXPECT_EQ(reshape->outputs().at(0).shape, (std::vector<std::int64_t>{-1, -1}));
  EXPECT_EQ(reshape->outputs().at(0).dimension_names, (std::vector<std::string>{"", ""}));
}

TEST_F(Declarations, HaveTheModelsMetadata) {
  const Metadata metadata = make_session("metadata")->metadata();
  EXPECT_EQ(metadata.producer_name, "a producer");
  EXPECT_EQ(metadata.graph_name, "a graph");
  EXPECT_EQ(metadata.domain, "a.domain");
  EXPECT_EQ(metadata.description, "a description");
  EXPECT_EQ(metadata.graph_description, "a graph's description");
  EXPECT_EQ(metadata.version, 7);
  const std::map<std::string, std::string> custom = {{"author", "somebody"}, {"empty", ""}, {"snow", "\xe2\x9d\x84"}};
  EXPECT_EQ(metadata.custom, custom);
  EXPECT_TRUE(make_session("add")->metadata().custom.empty());
}

TEST(ElementTypes, HaveOnnxsNames) {
  EXPECT_STREQ(element_type_name(ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED), "undefined");
  EXPECT_STREQ(element_type_name(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT), "float");
  EXPECT_STREQ(element_type_name(ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8), "uint8");
  EXPECT_STREQ(element_type_name(ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING), "string");
  EXPECT_STREQ(element_type_name(ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL), "bool");
  EXPECT_STREQ(element_type_name(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16), "float16");
  EXPECT_STREQ(element_type_name(ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE), "double");
  EXPECT_STREQ(element_type_name(ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX128), "complex128");
  EXPECT_STREQ(element_type_name(ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16), "bfloat16");
  EXPECT_STREQ(element_type_name(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2FNUZ), "float8e5m2fnuz");
  EXPECT_STREQ(element_type_name(ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4), "int4");
}

class EmptySequence : public RealSessions {};

TEST_F(EmptySequence, HasTheTypeAndNoTensors) {
  for (const auto type : {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING,
                          ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64}) {
    const Ort::Value value = make_empty_sequence(OnnxRuntime::get(), type);
    EXPECT_EQ(value.GetCount(), 0U);
    const Ort::TypeInfo info = value.GetTypeInfo();
    ASSERT_EQ(info.GetONNXType(), ONNX_TYPE_SEQUENCE);
    const auto item = info.GetSequenceTypeInfo().GetSequenceElementType();
    ASSERT_EQ(item.GetONNXType(), ONNX_TYPE_TENSOR);
    EXPECT_EQ(item.GetTensorTypeAndShapeInfo().GetElementType(), type);
  }
}

TEST_F(EmptySequence, IsRefusedOfATypeThatTheOperatorHasNot) {
  try {
    make_empty_sequence(OnnxRuntime::get(), ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX64);
    FAIL() << "it was made";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("an empty sequence of tensor(complex64)"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace ortmulti::tests
