#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/ort/io_binding.hpp"
#include "core/ort/value.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

std::shared_ptr<const Value> value_of(const std::vector<float>& values) {
  const auto memory = std::make_shared<std::vector<float>>(values);
  return Value::over(memory->data(), ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, {1, static_cast<std::int64_t>(values.size())},
                     Device::cpu(), memory);
}

class ABinding : public RealSessions {};

TEST_F(ABinding, is_used_by_one_thread_after_the_other) {
  IoBinding binding(make_session("add"));
  binding.bind_input("x", value_of({10, 20, 30}));
  binding.bind_output("sum", Device::cpu());
  in_threads(4, [&](int) {
    for (int k = 0; k < 100; ++k) {
      binding.run(Ort::RunOptions{nullptr});
      EXPECT_EQ(numbers(binding.outputs()[0]->get()), sum_of_add());
      binding.bind_input("x", value_of({10, 20, 30}));
    }
  });
}

TEST_F(ABinding, is_fed_values_beside_those_that_are_freed_with_the_run) {
  const auto kept = value_of({10, 20, 30});
  {
    RunInputs inputs;
    inputs.add("a", *kept);
    inputs.add("b", tensor({1, 3}, 1));
    const RunInputs moved(std::move(inputs));
    ASSERT_EQ(moved.size(), 2);
    EXPECT_EQ(numbers(moved.values()[0]), (std::vector<float>{10, 20, 30}));
    EXPECT_EQ(numbers(moved.values()[1]), (std::vector<float>{1, 2, 3}));
    EXPECT_EQ(std::string(moved.names()[1]), "b");
  }
  EXPECT_EQ(numbers(kept->get()), (std::vector<float>{10, 20, 30}));
}

}  // namespace
}  // namespace ortmulti::tests
