#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "core/create/creation.hpp"
#include "core/ort/options.hpp"
#include "core/ort/value.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

class Options : public RealSessions {
 protected:
  // What ONNX Runtime logs while it creates a session; at this level, its options too.
  static std::vector<LogRecord> log_of(const SessionOptions& options, const std::string& model_name = "add") {
    std::uint64_t dropped = 0;
    onnxruntime_log().take(std::chrono::milliseconds(0), dropped);
    make_session(model_name, options);
    return onnxruntime_log().take(std::chrono::milliseconds(0), dropped);
  }
  static bool says(const std::vector<LogRecord>& records, const std::string& words) {
    return std::any_of(records.begin(), records.end(),
                       [&](const LogRecord& record) { return record.message.find(words) != std::string::npos; });
  }
  static SessionOptions verbose() {
    SessionOptions options;
    options.log_severity_level = 0;
    return options;
  }
  static std::string optimized(int level) {
    const TemporaryFolder folder;
    SessionOptions options;
    options.graph_optimization_level = level;
    options.optimized_model_filepath = folder / "optimized.onnx";
    make_session("foldable", options);
    return read_file(options.optimized_model_filepath);
  }
};

TEST_F(Options, ReachOnnxRuntime) {
  SessionOptions options = verbose();
  options.intra_op_num_threads = 3;
  options.inter_op_num_threads = 2;
  options.execution_mode = ORT_PARALLEL;
  options.enable_mem_pattern = false;
  options.enable_cpu_mem_arena = false;
  options.use_deterministic_compute = true;
  options.log_verbosity_level = 5;
  options.logid = "a name";
  options.config_entries["session.intra_op.allow_spinning"] = "0";
  const auto records = log_of(options);
  EXPECT_TRUE(says(records, "execution_mode:1"));
  EXPECT_TRUE(says(records, "enable_mem_pattern:0"));
  EXPECT_TRUE(says(records, "enable_cpu_mem_arena:0"));
  EXPECT_TRUE(says(records, "use_deterministic_compute:1"));
  EXPECT_TRUE(says(records, "session_logid:a name"));
  EXPECT_TRUE(says(records, "session_log_severity_level:0"));
  EXPECT_TRUE(says(records, "session_log_verbosity_level:5"));
  EXPECT_TRUE(says(records, "thread_pool_size: 3"));
  EXPECT_TRUE(says(records, "thread_pool_size: 2"));
  EXPECT_TRUE(says(records, "session.intra_op.allow_spinning: 0"));
  EXPECT_TRUE(
      std::any_of(records.begin(), records.end(), [](const auto& record) { return record.logger == "a name"; }));
}

TEST_F(Options, HaveOnnxRuntimesDefaults) {
  const auto records = log_of(verbose());
  EXPECT_TRUE(says(records, "execution_mode:0"));
  EXPECT_TRUE(says(records, "enable_mem_pattern:1"));
  EXPECT_TRUE(says(records, "enable_cpu_mem_arena:1"));
  EXPECT_TRUE(says(records, "use_deterministic_compute:0"));
  EXPECT_TRUE(says(records, "enable_profiling:0"));
  EXPECT_TRUE(says(records, "use_per_session_threads:1"));
}

TEST_F(Options, TheDefaultSeverityIsQuiet) {
  for (const LogRecord& record : log_of({})) {
    EXPECT_GE(record.severity, 2) << record.message;
  }
}

TEST_F(Options, ThreadsAreStarted) {
  SessionOptions options;
  options.intra_op_num_threads = 1;
  const auto one = make_session("add", options);
  const std::size_t before = thread_count();
  options.intra_op_num_threads = 5;
  const auto five = make_session("add", options);
  EXPECT_EQ(thread_count(), before + 4) << "the caller is the fifth";
}

TEST_F(Options, TheLevelOfOptimizationDecidesWhatIsDone) {
  EXPECT_NE(optimized(ORT_DISABLE_ALL).find("Mul"), std::string::npos);
  EXPECT_EQ(optimized(ORT_ENABLE_BASIC).find("Mul"), std::string::npos);
  EXPECT_EQ(optimized(ORT_ENABLE_ALL).find("Mul"), std::string::npos);
}

TEST_F(Options, ProfilesAreWritten) {
  const TemporaryFolder folder;
  SessionOptions options;
  options.enable_profiling = true;
  options.profile_file_prefix = folder / "profile";
  const auto session = make_session("add", options);
  run_add(*session);
  EXPECT_GT(session->profiling_start_time_ns(), 0U);
  const std::string path = session->end_profiling();
  EXPECT_EQ(path.rfind(folder / "profile", 0), 0U) << path;
  EXPECT_NE(read_file(path).find("model_run"), std::string::npos);
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
  give("named", 300);
  const WeightList list = take_external_weights(options, 1024, {"named"});
  ASSERT_EQ(list.weights.size(), 1U);
  EXPECT_EQ(list.weights[0].name, "large");
  EXPECT_EQ(list.weights[0].data_type, 1);
  EXPECT_EQ(list.weights[0].shape, (std::vector<std::int64_t>{256}));
  EXPECT_EQ(list.weights[0].length, 1024U);
  EXPECT_EQ(list.sources.at(list.weights[0].source)->map().get(), reinterpret_cast<unsigned char*>(floats.data()));
  ASSERT_EQ(options.additions.external_initializers.size(), 3U);
  EXPECT_EQ(options.additions.external_initializers[0].first, "small");
}

TEST_F(Options, FreeDimensionsAreFixed) {
  SessionOptions options;
  options.free_dimensions_by_name = {{"batch", 4}};
  EXPECT_EQ(make_session("add", options)->inputs().at(0).shape, (std::vector<std::int64_t>{4, 3}));
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

TEST_F(Options, UnknownProvidersAreNamed) {
  for (const char* name : {"NoSuchExecutionProvider", "NoSuch", "", "ExecutionProvider"}) {
    const std::string label = std::string("provider ") + name;
    try {
      const Session session(runtime(), model("add"), {}, {{name, {}}}, nullptr);
      ADD_FAILURE() << "'" << name << "' was taken";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(label), std::string::npos) << error.what();
    }
  }
}

TEST_F(Options, TheCpuProviderIsAlwaysThere) {
  const Session session(runtime(), model("add"), {}, {{"CPUExecutionProvider", {}}}, nullptr);
  EXPECT_EQ(session.providers().size(), 1U);
}

constexpr std::size_t wide = 256;

// Numbers on the heap, which the checks watch.
struct Numbers {
  std::vector<float> values;
};

class Additions : public RealSessions {
 protected:
  static ModelAdditions::NamedValue named(const std::string& name, const std::shared_ptr<Numbers>& numbers,
                                          const std::vector<std::int64_t>& shape) {
    const auto value =
        Value::over(numbers->values.data(), ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, shape, Device::cpu(), numbers);
    return {name, {value, &value->get()}};
  }
  // `factor` times the identity matrix.
  static std::shared_ptr<Numbers> diagonal(float factor) {
    auto numbers = std::make_shared<Numbers>();
    numbers->values.resize(wide * wide);
    for (std::size_t i = 0; i < wide; ++i) {
      numbers->values[i * wide + i] = factor;
    }
    return numbers;
  }
  static std::vector<float> run_wide(Session& session) {
    const std::vector<float> ones(wide, 1.0F);
    return run(session, {{"x", ones, {1, wide}}}, "y");
  }
};

TEST_F(Additions, AnInitializerIsUsedInPlaceAndHeldByTheSession) {
  auto numbers = std::make_shared<Numbers>(Numbers{{10, 20, 30}});
  SessionOptions options;
  options.additions.initializers.push_back(named("c", numbers, {3}));
  const auto session = make_session("add", options);
  const auto handle = session->share();
  const std::weak_ptr<Numbers> watched = numbers;
  options = {};
  numbers.reset();
  EXPECT_EQ(run_add(*session), (std::vector<float>{20, 40, 60}));
  watched.lock()->values = {0, 0, 0};
  EXPECT_EQ(run_add(*session), (std::vector<float>{10, 20, 30}));
  session->close();
  EXPECT_FALSE(watched.expired());
  EXPECT_EQ(run_add(*handle), (std::vector<float>{10, 20, 30}));
  handle->close();
  EXPECT_TRUE(watched.expired());
}

TEST_F(Additions, ExternalInitializersAndFilesTakeThePlaceOfFiles) {
  SessionOptions options;
  options.additions.external_initializers.push_back(named("w", diagonal(3), {wide, wide}));
  EXPECT_EQ(run_wide(*make_session("external", options)), std::vector<float>(wide, 3.0F));
  EXPECT_EQ(run_wide(*make_session("external")), std::vector<float>(wide, 2.0F));

  const auto content = diagonal(5);
  options = {};
  options.additions.files.push_back({"not_there.data",
                                     {content, reinterpret_cast<const unsigned char*>(content->values.data())},
                                     content->values.size() * sizeof(float)});
  EXPECT_EQ(run_wide(*make_session("missing_data", options)), std::vector<float>(wide, 5.0F));
}

TEST_F(Additions, WhatDoesNotFitFailsTheCreation) {
  SessionOptions options;
  options.additions.external_initializers.push_back(named("w", diagonal(3), {wide * wide}));
  EXPECT_TRUE(throws(ErrorKind::fail, {"creating a session", "dimensions do not match"},
                     [&] { make_session("external", options); }));
}

TEST_F(Additions, OperatorsOfALibraryRun) {
  SessionOptions options;
  options.additions.custom_op_libraries.push_back(CustomOpLibrary::open(ORTMULTI_CUSTOM_OPS));
  const auto session = make_session("scaled", options);
  const auto second = make_session("scaled", options);
  options = {};
  second->close();
  EXPECT_EQ(run(*session, {{"x", {1, 2}, {2}}}, "y"), (std::vector<float>{3, 6}));
  EXPECT_ANY_THROW(make_session("scaled"));
}

// ONNX Runtime adds a library's domain to its own in two steps, so that sessions that do it at once can fail.
TEST_F(Additions, TheFirstSessionOfALibraryRegistersItAlone) {
  constexpr int sessions = 4;
  SessionOptions options;
  options.additions.custom_op_libraries.push_back(CustomOpLibrary::open(ORTMULTI_CUSTOM_OPS));
  std::vector<std::future<std::vector<float>>> outputs;
  outputs.reserve(sessions);
  for (int i = 0; i < sessions; ++i) {
    outputs.push_back(std::async(
        std::launch::async, [&options] { return run(*make_session("scaled", options), {{"x", {1, 2}, {2}}}, "y"); }));
  }
  for (auto& output : outputs) {
    EXPECT_EQ(output.get(), (std::vector<float>{3, 6}));
  }
  void* const library = dlopen(ORTMULTI_CUSTOM_OPS, RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr);
  const auto looks_beside_first = reinterpret_cast<int (*)()>(dlsym(library, "looks_beside_first"));
  ASSERT_NE(looks_beside_first, nullptr);
  EXPECT_EQ(looks_beside_first(), 0);
  dlclose(library);
}

TEST_F(Additions, ALibraryThatIsNoneIsRefusedWhenItIsOpened) {
  const TemporaryFolder folder;
  const std::string text = folder.write("library.so", "no library");
  EXPECT_TRUE(throws(ErrorKind::fail, {"custom operators", text.c_str()}, [&] { CustomOpLibrary::open(text); }));
  EXPECT_TRUE(throws(ErrorKind::fail, {"not_there.so"}, [&] { CustomOpLibrary::open(folder / "not_there.so"); }));
  EXPECT_TRUE(throws(ErrorKind::fail, {"RegisterCustomOps"}, [] { CustomOpLibrary::open("libm.so.6"); }));
}

}  // namespace
}  // namespace ortmulti::tests
