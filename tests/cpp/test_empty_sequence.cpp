#include <gtest/gtest.h>

#include <string>

#include "core/base/error.hpp"
#include "core/ort/value.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

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
