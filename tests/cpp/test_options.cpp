#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/create/external_weights.hpp"
#include "core/ort/options.hpp"
#include "core/ort/value.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

class Options : public RealSessions {};

TEST_F(Options, ReachOnnxRuntime) {
  SessionOptions options = with_threads(3);
  options.log_severity_level = 0;  // at which a session logs its options
  options.inter_op_num_threads = 2;
  options.execution_mode = ORT_PARALLEL;
  options.enable_mem_pattern = false;
  options.enable_cpu_mem_arena = false;
  options.use_deterministic_compute = true;
  options.log_verbosity_level = 5;
  options.logid = "a name";
  options.config_entries["session.intra_op.allow_spinning"] = "0";
  take_log();
  make_session("add", options);
  const auto records = take_log();
  for (const char* words :
       {"execution_mode:1", "enable_mem_pattern:0", "enable_cpu_mem_arena:0", "use_deterministic_compute:1",
        "session_logid:a name", "session_log_severity_level:0", "session_log_verbosity_level:5", "thread_pool_size: 3",
        "thread_pool_size: 2", "session.intra_op.allow_spinning: 0"}) {
    EXPECT_TRUE(std::ranges::any_of(records, [&](const LogRecord& record) {
      return record.message.find(words) != std::string::npos && record.logger == "a name";
    })) << words;
  }
}

TEST_F(Options, KeepNoPatternsOfMemoryOnTheCpuUnlessTheUserWantsThem) {
  for (const auto& [wanted, words] : {std::pair<std::optional<bool>, const char*>{std::nullopt, "enable_mem_pattern:0"},
                                      {true, "enable_mem_pattern:1"}}) {
    SessionOptions options;
    options.log_severity_level = 0;
    options.enable_mem_pattern = wanted;
    take_log();
    make_session("add", options);
    const auto records = take_log();
    EXPECT_TRUE(std::ranges::any_of(records, [words = words](const LogRecord& record) {
      return record.message.find(words) != std::string::npos;
    })) << words;
  }
}

TEST_F(Options, LargeValuesInTheHostsMemoryBecomeWeights) {
  std::vector<float> floats(300);
  SessionOptions options;
  const auto give = [&](const std::string& name, std::int64_t count) {
    const auto value = Value::over(floats.data(), ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, {count}, Device::cpu(), {});
    options.additions.external_initializers.push_back({name, {value, &value->get()}});
  };
  give("small", 255);
  give("large", 256);
  give("", 300);
  const WeightList list = take_external_weights(options, 1024);
  ASSERT_EQ(list.weights.size(), 1U);
  EXPECT_EQ(list.weights[0].name, "large");
  EXPECT_EQ(list.weights[0].data_type, 1);
  EXPECT_EQ(list.weights[0].shape, (std::vector<std::int64_t>{256}));
  EXPECT_EQ(list.weights[0].length, 1024U);
  EXPECT_EQ(list.sources.at(list.weights[0].source)->map().get(), reinterpret_cast<unsigned char*>(floats.data()));
  ASSERT_EQ(options.additions.external_initializers.size(), 2U);
  EXPECT_EQ(options.additions.external_initializers[0].first, "small");
}

TEST_F(Options, WhatOnnxRuntimeRefusesIsAnErrorThatNamesTheModel) {
  const auto refuses = [](ErrorKind kind, const char* word, void (*change)(SessionOptions&)) {
    SessionOptions options;
    change(options);
    EXPECT_TRUE(
        throws(kind, {"creating a session", "add.onnx", "on cpu", word}, [&] { make_session("add", options); }));
  };
  refuses(ErrorKind::invalid_argument, "graph_optimization_level",
          [](SessionOptions& o) { o.graph_optimization_level = 50; });
  refuses(ErrorKind::invalid_argument, "execution_mode", [](SessionOptions& o) { o.execution_mode = 7; });
  refuses(ErrorKind::invalid_argument, "onfig", [](SessionOptions& o) { o.config_entries[""] = "x"; });
  refuses(ErrorKind::invalid_argument, "onfig",
          [](SessionOptions& o) { o.config_entries[std::string(5000, 'k')] = "x"; });
  refuses(ErrorKind::fail, "per session", [](SessionOptions& o) { o.use_per_session_threads = false; });
  SessionOptions format;
  format.config_entries["session.load_model_format"] = "ORT";
  EXPECT_THROW(make_session("add", format), Error) << "the model is no ORT format";
}

}  // namespace
}  // namespace ortmulti::tests
