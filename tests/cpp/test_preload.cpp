#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/create/preload.hpp"
#include "core/onnx/index.hpp"
#include "core/onnx/tiny_model.hpp"
#include "core/onnx/wire.hpp"
#include "core/ort/session.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

class Preloading : public RealSessions {};

TEST_F(Preloading, TinyModelsRun) {
  const TinyValue x{"x", {2, 3}};
  const TinyValue w{"w", {3, 4}};
  const TinyValue v{"v", {3}};
  const auto bytes = std::make_shared<const std::string>(tiny_model(
      1, {{"MatMul", {&x, &w}}, {"Add", {&x, &v}}, {"com.microsoft:BiasGelu", {&x, &v}}, {"Softmax", {&x}}}));
  SessionOptions options;
  options.intra_op_num_threads = 1;
  Session session(runtime(), model_of(bytes), options, {{"CPUExecutionProvider", {}}}, nullptr);
  EXPECT_EQ(session.input("x").shape, (std::vector<std::int64_t>{2, 3}));
  const Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  std::vector<float> ones(12, 1.0F);
  RunInputs inputs;
  for (const ValueInfo& input : session.inputs()) {
    std::size_t count = 1;
    for (const std::int64_t size : input.shape) {
      count *= static_cast<std::size_t>(size);
    }
    inputs.add(input.name.c_str(),
               Ort::Value::CreateTensor<float>(memory, ones.data(), count, input.shape.data(), input.shape.size()));
  }
  const std::vector<Ort::Value> values = session.run(Ort::RunOptions{nullptr}, inputs, {"y0", "y1", "y3"});
  EXPECT_EQ(values[0].GetTensorTypeAndShapeInfo().GetShape(), (std::vector<std::int64_t>{2, 4}));
  EXPECT_EQ(values[0].GetTensorData<float>()[7], 3.0F);
  EXPECT_EQ(values[1].GetTensorData<float>()[5], 2.0F);
  EXPECT_FLOAT_EQ(values[2].GetTensorData<float>()[0], 1.0F / 3);
}

TEST_F(Preloading, ATinyModelNeedsTheOperatorsThatItsNodesName) {
  const TinyValue x{"x", {2, 3}};
  const std::string bytes = tiny_model(10, {{"Relu", {&x}}, {"com.microsoft:FastGelu", {&x}}});
  const ModelIndex index = index_model({reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()});
  EXPECT_EQ(index.operators, (std::set<std::string>{"Relu", "com.microsoft:FastGelu"}));
  EXPECT_EQ(index.opsets.at("com.microsoft"), 1U);
  EXPECT_EQ(index.nodes, 2U);
}

TEST_F(Preloading, WithoutADriverNothingIsLoadedAndNothingFails) {
  ModelIndex index;
  index.operators = {"MatMul", "Conv", "Add"};
  const auto timeline = std::make_shared<Timeline>();
  Preload(index).begin(runtime(), 0, true, {timeline, {}, {}});
  wait_for_preloads(0);
  begin_preload(runtime(), {{0, 1}}, index);
  begin_preload(runtime(), {}, index);
  wait_for_preloads();
  end_preloads();
  EXPECT_TRUE(timeline->spans().empty());
}

}  // namespace
}  // namespace ortmulti::tests
