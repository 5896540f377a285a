#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "core/onnx/element_types.hpp"
#include "core/ort/value.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

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

}  // namespace
}  // namespace ortmulti::tests
