#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

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

}  // namespace
}  // namespace ortmulti::tests
