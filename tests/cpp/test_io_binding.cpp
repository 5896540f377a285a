#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/ort/io_binding.hpp"
#include "core/ort/value.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

constexpr auto float32 = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;

std::shared_ptr<const Value> value_of(const std::vector<float>& values) {
  const auto memory = std::make_shared<std::vector<float>>(values);
  return Value::over(memory->data(), float32, {1, static_cast<std::int64_t>(values.size())}, Device::cpu(), memory);
}

// No options. Leaked: it cannot be freed where ONNX Runtime was not opened.
const Ort::RunOptions& none() {
  static const auto* options = new Ort::RunOptions(nullptr);  // NOLINT(cppcoreguidelines-owning-memory)
  return *options;
}

std::vector<float> floats(const Value& value) {
  std::vector<float> found(value.bytes() / sizeof(float));
  value.copy_to_host(found.data());
  return found;
}

class ABinding : public RealSessions {
 protected:
  void SetUp() override {
    RealSessions::SetUp();
    if (!IsSkipped()) {
      session = make_session("add");
      binding = std::make_unique<IoBinding>(session);
    }
  }

  std::shared_ptr<Session> session;
  std::unique_ptr<IoBinding> binding;
};

TEST_F(ABinding, runs_with_what_is_bound) {
  binding->bind_input("x", value_of({10, 20, 30}));
  binding->bind_output("sum", Device::cpu());
  ASSERT_EQ(binding->outputs().size(), 1);
  EXPECT_FALSE(binding->outputs()[0]->has_value());
  binding->synchronize_inputs();
  binding->run(none());
  binding->synchronize_outputs();
  EXPECT_EQ(floats(*binding->outputs()[0]), sum_of_add());
}

TEST_F(ABinding, writes_to_the_bound_memory_which_its_outputs_keep) {
  auto memory = std::make_shared<std::array<float, 3>>();
  const std::weak_ptr<std::array<float, 3>> watched = memory;
  float* const data = memory->data();
  binding->bind_input("x", value_of({10, 20, 30}));
  binding->bind_output("sum", Value::over(data, float32, {1, 3}, Device::cpu(), std::move(memory)));
  binding->run(none());
  EXPECT_EQ(std::vector<float>(data, data + 3), sum_of_add());
  Values outputs = binding->outputs();
  EXPECT_EQ(outputs[0]->data(), data);
  binding->clear_outputs();
  EXPECT_TRUE(binding->outputs().empty());
  EXPECT_FALSE(watched.expired());
  outputs.clear();
  EXPECT_TRUE(watched.expired());
}

TEST_F(ABinding, gives_up_what_is_replaced_or_cleared) {
  auto first = std::make_shared<std::array<float, 3>>();
  const std::weak_ptr<std::array<float, 3>> watched = first;
  float* const data = first->data();
  binding->bind_input("x", Value::over(data, float32, {1, 3}, Device::cpu(), std::move(first)));
  EXPECT_FALSE(watched.expired());
  binding->bind_input("x", value_of({1, 2, 3}));
  EXPECT_TRUE(watched.expired());
  binding->clear_inputs();
  binding->bind_output("sum", Device::cpu());
  EXPECT_TRUE(throws(ErrorKind::invalid_argument, {"Required inputs (['x'])"}, [&] { binding->run(none()); }));
}

TEST_F(ABinding, refuses_what_the_model_does_not_take) {
  const auto fits = value_of({1, 2, 3});
  const auto doubles = Value::allocate(ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, {1, 3}, Device::cpu());
  EXPECT_TRUE(
      throws(ErrorKind::invalid_argument, {"unknown input 'z'", "'x'"}, [&] { binding->bind_input("z", fits); }));
  EXPECT_TRUE(throws(ErrorKind::invalid_argument, {"unknown output 'z'"}, [&] { binding->bind_output("z", fits); }));
  EXPECT_TRUE(
      throws(ErrorKind::invalid_argument, {"unknown output 'z'"}, [&] { binding->bind_output("z", Device::cpu()); }));
  EXPECT_TRUE(throws(ErrorKind::invalid_type, {"'x' is tensor(float)", "tensor(double)"},
                     [&] { binding->bind_input("x", doubles); }));
  EXPECT_TRUE(throws(ErrorKind::invalid_type, {"'sum' is tensor(float)", "tensor(double)"},
                     [&] { binding->bind_output("sum", doubles); }));
  EXPECT_TRUE(throws(ErrorKind::invalid_argument, {"'x' has the shape [any, 3]", "[1, 2]"},
                     [&] { binding->bind_input("x", value_of({1, 2})); }));
  float number = 0;
  EXPECT_TRUE(throws(ErrorKind::invalid_argument, {"read-only"}, [&] {
    binding->bind_output("sum", Value::over(&number, float32, {1, 1}, Device::cpu(), nullptr, false));
  }));
  binding->bind_input("x", fits);
  EXPECT_TRUE(throws(ErrorKind::invalid_argument, {"no output is bound"}, [&] { binding->run(none()); }));
  binding->bind_output("sum", Device::cpu());
  binding->run(none());  // what was refused has left nothing
  EXPECT_EQ(floats(*binding->outputs()[0]), (std::vector<float>{2, 4, 6}));
}

TEST_F(ABinding, keeps_its_session_which_may_be_closed_under_it) {
  const std::weak_ptr<Session> watched = session;
  session.reset();
  binding->bind_input("x", value_of({10, 20, 30}));
  binding->bind_output("sum", Device::cpu());
  binding->run(none());
  const Values outputs = binding->outputs();
  ASSERT_FALSE(watched.expired());
  watched.lock()->close();
  EXPECT_TRUE(throws(ErrorKind::closed, {"closed"}, [&] { binding->run(none()); }));
  EXPECT_TRUE(throws(ErrorKind::closed, {"closed"}, [&] { binding->bind_input("x", value_of({1, 2, 3})); }));
  EXPECT_TRUE(throws(ErrorKind::closed, {"closed"}, [&] { binding->outputs(); }));
  binding.reset();
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(floats(*outputs[0]), sum_of_add());
}

TEST_F(ABinding, is_used_by_one_thread_after_the_other) {
  binding->bind_input("x", value_of({10, 20, 30}));
  binding->bind_output("sum", Device::cpu());
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 100; ++k) {
        binding->run(none());
        EXPECT_EQ(floats(*binding->outputs()[0]), sum_of_add());
        binding->bind_input("x", value_of({10, 20, 30}));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST_F(ABinding, is_left_to_the_parent_after_a_fork) {
  EXPECT_TRUE(in_forked_child([&] {
    const auto forked = throws(ErrorKind::forked, {}, [&] { binding->run(none()); });
    binding.reset();
    return static_cast<bool>(forked);
  }));
}

TEST_F(ABinding, is_not_needed_to_run_with_values) {
  const Values outputs = run_with_values(*session, none(), {"x"}, {value_of({10, 20, 30})}, {});
  EXPECT_EQ(floats(*outputs[0]), sum_of_add());
  EXPECT_TRUE(
      throws(ErrorKind::invalid_argument, {"Required inputs"}, [&] { run_with_values(*session, none(), {}, {}, {}); }));
  EXPECT_TRUE(throws(ErrorKind::invalid_argument, {"unknown output 'z'"},
                     [&] { run_with_values(*session, none(), {"x"}, {value_of({1, 2, 3})}, {"z"}); }));
}

class AValueOfASession : public ABinding {};

TEST_F(AValueOfASession, is_used_and_outlives_it) {
  const auto value = allocate_in(*session, float32, {1, 3}, Device::cpu());
  const std::vector<float> numbers = {10, 20, 30};
  value->copy_from_host(numbers.data());
  EXPECT_EQ(floats(*run_with_values(*session, none(), {"x"}, {value}, {"sum"})[0]), sum_of_add());
  binding.reset();
  session->close();
  session.reset();
  EXPECT_EQ(floats(*value), numbers);
}

TEST_F(AValueOfASession, is_refused_where_there_can_be_none) {
  const auto kind_of = [&](ONNXTensorElementDataType type, const std::vector<std::int64_t>& shape, const Device& on) {
    try {
      allocate_in(*session, type, shape, on);
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::fail;
  };
  EXPECT_EQ(kind_of(ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, {3}, Device::cpu()), ErrorKind::not_implemented);
  EXPECT_EQ(kind_of(float32, {-3}, Device::cpu()), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of(float32, {3}, Device::cuda(0)), ErrorKind::invalid_argument);
  session->close();
  EXPECT_EQ(kind_of(float32, {3}, Device::cpu()), ErrorKind::closed);
}

TEST_F(AValueOfASession, is_fed_beside_values_that_are_freed_with_the_run) {
  const auto kept = value_of({10, 20, 30});
  std::array<float, 3> own = {1, 2, 3};
  const std::array<std::int64_t, 2> shape = {1, 3};
  const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  {
    RunInputs inputs;
    inputs.add("a", *kept);
    inputs.add("b", Ort::Value::CreateTensor<float>(memory, own.data(), own.size(), shape.data(), shape.size()));
    const RunInputs moved(std::move(inputs));
    ASSERT_EQ(moved.size(), 2);
    EXPECT_EQ(moved.values()[0].GetTensorData<float>()[0], 10);
    EXPECT_EQ(moved.values()[1].GetTensorData<float>()[2], 3);
    EXPECT_EQ(std::string(moved.names()[1]), "b");
  }
  EXPECT_EQ(floats(*kept), (std::vector<float>{10, 20, 30}));
}

}  // namespace
}  // namespace ortmulti::tests
