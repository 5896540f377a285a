#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/ort/session.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

class SessionTest : public RealSessions {
 protected:
  static ModelSource in_memory(const std::string& name) {
    const auto bytes = std::make_shared<const std::string>(read_file(model_path(name)));
    return ModelSource::from_bytes(bytes->data(), bytes->size(), bytes);
  }
  static std::shared_ptr<Session> open(const ModelSource& source, const SessionOptions& options = {}) {
    return std::make_shared<Session>(runtime(), source, options, std::vector<Provider>{}, nullptr);
  }
};

TEST_F(SessionTest, RunsAModelFromAPathOrFromBytes) {
  const auto from_path = make_session("add");
  const auto from_bytes = open(in_memory("add"));
  EXPECT_EQ(run_add(*from_path), sum_of_add());
  EXPECT_EQ(run_add(*from_bytes), sum_of_add());
  EXPECT_EQ(from_path->model(), "'" + model_path("add") + "'");
  EXPECT_EQ(from_bytes->model(), "a model of " + std::to_string(read_file(model_path("add")).size()) + " bytes");
  EXPECT_EQ(from_path->device(), Device::cpu());
}

TEST_F(SessionTest, RunsForTheOutputsAskedForInTheirOrder) {
  const auto session = make_session("add");
  std::array<float, 6> x = {1, 2, 3, 4, 5, 6};
  const std::array<std::int64_t, 2> shape = {2, 3};
  const auto memory = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
  const Ort::Value input = Ort::Value::CreateTensor<float>(memory, x.data(), x.size(), shape.data(), shape.size());
  const char* input_name = "x";
  const std::array<const char*, 2> names = {"difference", "sum"};
  std::vector<Ort::Value> outputs;
  outputs.emplace_back(nullptr);
  outputs.emplace_back(nullptr);
  session->run(Ort::RunOptions{nullptr}, &input_name, &input, 1, names.data(), outputs.data(), outputs.size());
  EXPECT_EQ(outputs[0].GetTensorTypeAndShapeInfo().GetShape(), (std::vector<std::int64_t>{2, 3}));
  const auto* difference = outputs[0].GetTensorData<float>();
  const auto* sum = outputs[1].GetTensorData<float>();
  EXPECT_EQ(std::vector<float>(difference, difference + 6), (std::vector<float>{0, 0, 0, 3, 3, 3}));
  EXPECT_EQ(std::vector<float>(sum, sum + 6), (std::vector<float>{2, 4, 6, 5, 7, 9}));
}

TEST_F(SessionTest, FindsExternalDataBesideTheModel) {
  std::vector<float> x(256);
  std::vector<float> doubled(256);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(i);
    doubled[i] = 2 * static_cast<float>(i);
  }
  const auto session = make_session("external");
  EXPECT_EQ(run(*session, {{"x", x, {1, 256}}}, "y"), doubled);
}

TEST_F(SessionTest, FeedsOverridableInitializersOrLeavesThem) {
  const auto session = make_session("overridable");
  EXPECT_EQ(run(*session, {{"x", {1, 2}, {2}}}, "y"), (std::vector<float>{2, 4}));
  EXPECT_EQ(run(*session, {{"x", {1, 2}, {2}}, {"scale", {5}, {1}}}, "y"), (std::vector<float>{5, 10}));
  ASSERT_EQ(session->inputs().size(), 1U);
  EXPECT_EQ(session->inputs()[0].name, "x");
  ASSERT_EQ(session->overridable_initializers().size(), 1U);
  EXPECT_EQ(session->overridable_initializers()[0].name, "scale");
  EXPECT_EQ(session->overridable_initializers()[0].shape, (std::vector<std::int64_t>{1}));
}

TEST_F(SessionTest, MarksItsCreationOnTheTimeline) {
  Timeline timeline;
  const Session session(runtime(), model("add"), {}, {}, &timeline);
  const auto spans = timeline.spans();
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0].name, "prepare session");
  EXPECT_EQ(spans[1].name, "create session");
  for (const Span& span : spans) {
    EXPECT_EQ(span.device, "cpu");
    EXPECT_LT(span.start_ns, span.end_ns);
  }
}

TEST_F(SessionTest, RefusesModelsThatAreNone) {
  EXPECT_TRUE(throws(ErrorKind::no_such_file, {"not_there.onnx", "on cpu"}, [] { make_session("not_there"); }));
  EXPECT_TRUE(throws(ErrorKind::invalid_protobuf, {"text.onnx", "on cpu"}, [] { make_session("text"); }));
  EXPECT_TRUE(throws(ErrorKind::invalid_protobuf, {"truncated.onnx", "on cpu"}, [] { make_session("truncated"); }));
  EXPECT_TRUE(throws(ErrorKind::no_such_file, {"''"}, [] { open(ModelSource::from_path("")); }));
  const std::string folder = model_path("add").substr(0, model_path("add").rfind('/'));
  EXPECT_THROW(open(ModelSource::from_path(folder)), Error);
  // ONNX Runtime's releases differ in the code.
  for (const char* name : {"empty", "missing_data", "short_data"}) {
    try {
      make_session(name);
      ADD_FAILURE() << name << " was taken";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(std::string(name) + ".onnx"), std::string::npos) << error.what();
    }
  }
}

TEST_F(SessionTest, RefusesBytesThatAreNoModel) {
  static const std::string text(100, 'x');
  EXPECT_THROW(open(ModelSource::from_bytes(text.data(), text.size(), nullptr)), Error);
  EXPECT_TRUE(throws(ErrorKind::invalid_argument, {"a model of 0 bytes"},
                     [] { open(ModelSource::from_bytes(text.data(), 0, nullptr)); }));
  const ModelSource half = in_memory("wide");
  EXPECT_THROW(open(ModelSource::from_bytes(half.bytes, half.size / 2, half.owner)), Error);
}

TEST_F(SessionTest, LeavesTheModelsBytesToTheirOwner) {
  auto owner = std::make_shared<const std::string>(read_file(model_path("wide")));
  const auto session = open(ModelSource::from_bytes(owner->data(), owner->size(), owner));
  EXPECT_EQ(owner.use_count(), 1);
  owner.reset();
  const std::vector<float> ones(256, 1);
  EXPECT_EQ(run(*session, {{"x", ones, {1, 256}}}, "y"), std::vector<float>(256, 2));
}

TEST_F(SessionTest, KeepsBytesThatOnnxRuntimeUsesInPlace) {
  const TemporaryFolder folder;
  SessionOptions save;
  save.optimized_model_filepath = folder / "wide.ort";
  save.config_entries["session.save_model_format"] = "ORT";
  make_session("wide", save);

  auto owner = std::make_shared<const std::string>(read_file(folder / "wide.ort"));
  const std::weak_ptr<const std::string> bytes = owner;
  SessionOptions in_place;
  in_place.config_entries["session.use_ort_model_bytes_directly"] = "1";
  in_place.config_entries["session.use_ort_model_bytes_for_initializers"] = "1";
  auto session = open(ModelSource::from_bytes(owner->data(), owner->size(), owner), in_place);
  owner.reset();
  EXPECT_FALSE(bytes.expired());
  const std::vector<float> ones(256, 1);
  EXPECT_EQ(run(*session, {{"x", ones, {1, 256}}}, "y"), std::vector<float>(256, 2));
  session.reset();
  EXPECT_TRUE(bytes.expired());
}

TEST_F(SessionTest, RunErrorsKeepTheirCodeAndNameTheModel) {
  const auto session = make_session("add");
  const auto fails = [&](const std::vector<FloatTensor>& inputs, const char* output, const char* word) {
    EXPECT_TRUE(throws(ErrorKind::invalid_argument, {"running", "add.onnx", "on cpu", word},
                       [&] { run(*session, inputs, output); }));
  };
  fails({{"x", {1, 2, 3}, {3}}}, "sum", "rank");
  fails({{"x", {1, 2}, {1, 2}}}, "sum", "dimensions");
  fails({{"z", {1, 2, 3}, {1, 3}}}, "sum", "z");
  fails({{"x", {1, 2, 3}, {1, 3}}}, "product", "product");
  EXPECT_EQ(run_add(*session), sum_of_add()) << "the session goes on";

  // This one fails in a node.
  const auto reshape = make_session("reshape");
  const auto memory = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
  std::array<float, 5> x{};
  std::array<std::int64_t, 2> shape = {2, 2};
  const std::array<std::int64_t, 1> x_shape = {5};
  const std::array<std::int64_t, 1> shape_shape = {2};
  std::vector<Ort::Value> inputs;
  inputs.push_back(Ort::Value::CreateTensor<float>(memory, x.data(), 5, x_shape.data(), 1));
  inputs.push_back(Ort::Value::CreateTensor<std::int64_t>(memory, shape.data(), 2, shape_shape.data(), 1));
  const std::array<const char*, 2> names = {"x", "shape"};
  const char* output = "y";
  Ort::Value result{nullptr};
  try {
    reshape->run(Ort::RunOptions{nullptr}, names.data(), inputs.data(), 2, &output, &result, 1);
    ADD_FAILURE() << "5 values became 2 by 2";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("Reshape"), std::string::npos) << error.what();
  }
}

TEST_F(SessionTest, ClosedOnesRefuseEverythingButTheirDescription) {
  const auto session = make_session("add");
  EXPECT_FALSE(session->closed());
  session->close();
  session->close();
  EXPECT_TRUE(session->closed());
  const auto refuses = [](const std::function<void()>& call) {
    EXPECT_TRUE(throws(ErrorKind::closed, {"add.onnx", "on cpu", "closed"}, call));
  };
  refuses([&] { run_add(*session); });
  refuses([&] { session->end_profiling(); });
  refuses([&] { static_cast<void>(session->profiling_start_time_ns()); });
  EXPECT_EQ(session->inputs().at(0).name, "x");
  EXPECT_EQ(session->metadata().graph_name, "add");
}

TEST_F(SessionTest, ClosingWaitsForTheRunsOfManyThreads) {
  constexpr int threads = 8;
  const auto session = make_session("add");
  std::atomic<int> ran{0};
  std::promise<void> all_ran;
  std::vector<std::future<bool>> results;
  results.reserve(threads);
  for (int i = 0; i < threads; ++i) {
    results.push_back(std::async(std::launch::async, [&] {
      bool first = true;
      for (;;) {
        try {
          if (run_add(*session) != sum_of_add()) {
            return false;
          }
        } catch (const Error& error) {
          return error.kind() == ErrorKind::closed;
        }
        if (first && ++ran == threads) {
          all_ran.set_value();
        }
        first = false;
      }
    }));
  }
  all_ran.get_future().wait();
  std::vector<std::future<void>> closers;
  closers.reserve(2);
  for (int i = 0; i < 2; ++i) {
    closers.push_back(std::async(std::launch::async, [&] { session->close(); }));
  }
  for (auto& closer : closers) {
    closer.get();
  }
  for (auto& result : results) {
    EXPECT_TRUE(result.get());
  }
}

TEST_F(SessionTest, RegisteredOnesAreClosedTogetherAndOthersNot) {
  const auto registered = make_session("add");
  const auto other = make_session("add");
  register_for_shutdown(registered);
  for (int i = 0; i < 100; ++i) {  // those that are gone are forgotten
    register_for_shutdown(make_session("add"));
  }
  close_all_sessions();
  EXPECT_TRUE(registered->closed());
  EXPECT_FALSE(other->closed());
  close_all_sessions();
}

TEST_F(SessionTest, KnowsItsDeviceByItsProviders) {
  EXPECT_EQ(device_of(std::vector<Provider>{}), Device::cpu());
  EXPECT_EQ(device_of({{"CPUExecutionProvider", {}}}), Device::cpu());
  EXPECT_EQ(device_of({{"CUDAExecutionProvider", {}}}), Device::cuda(0));
  EXPECT_EQ(device_of({{"CUDAExecutionProvider", {{"device_id", "3"}}}, {"CPUExecutionProvider", {}}}),
            Device::cuda(3));
  EXPECT_EQ(
      device_of({{"TensorrtExecutionProvider", {{"device_id", "1"}}}, {"CUDAExecutionProvider", {{"device_id", "2"}}}}),
      Device::cuda(1));
}

}  // namespace
}  // namespace ortmulti::tests
