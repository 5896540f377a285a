#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "core/create/creation.hpp"
#include "core/ort/library.hpp"
#include "core/ort/value.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

class Library : public RealSessions {};

TEST_F(Library, IsOpenedOnce) {
  OnnxRuntime& first = runtime();
  EXPECT_TRUE(OnnxRuntime::is_open());
  EXPECT_EQ(&runtime(), &first);
  EXPECT_EQ(&OnnxRuntime::get(), &first);
  EXPECT_EQ(first.path(), std::getenv("ORTMULTI_ONNXRUNTIME_LIBRARY"));
}

TEST_F(Library, KnowsItsVersion) {
  const std::string version = runtime().version();  // "1.31.1"
  ASSERT_EQ(version.rfind("1.", 0), 0U) << version;
  EXPECT_GE(std::stoi(version.substr(2)), OnnxRuntime::api_version);
}

TEST_F(Library, ListsItsProviders) {
  const std::vector<std::string> providers = runtime().available_providers();
  EXPECT_NE(std::find(providers.begin(), providers.end(), "CPUExecutionProvider"), providers.end());
}

TEST_F(Library, ASecondOneIsRefused) {
  EXPECT_TRUE(throws(ErrorKind::library, {runtime().path().c_str(), "/elsewhere/libonnxruntime.so"},
                     [] { OnnxRuntime::open("/elsewhere/libonnxruntime.so"); }));
  EXPECT_EQ(OnnxRuntime::get().path(), runtime().path());
}

TEST_F(Library, LogsIntoTheQueue) {
  std::uint64_t dropped = 0;
  onnxruntime_log().take(std::chrono::milliseconds(0), dropped);
  SessionOptions options;
  options.log_severity_level = 0;
  options.logid = "a session's name";
  const auto session = make_session("add", options);
  const auto records = onnxruntime_log().take(std::chrono::milliseconds(0), dropped);
  EXPECT_TRUE(std::any_of(records.begin(), records.end(), [](const LogRecord& record) {
    return record.logger == "a session's name" && !record.message.empty() && !record.location.empty() &&
           record.severity <= 1;
  })) << records.size();
}

TEST_F(Library, AForkedChildHasALogOfItsOwn) {
  onnxruntime_log().push({2, "", "", "", "the parent's"});
  EXPECT_TRUE(in_forked_child([] {
    std::uint64_t dropped = 0;
    const bool empty = onnxruntime_log().take(std::chrono::milliseconds(0), dropped).empty();
    onnxruntime_log().push({2, "", "", "", "the child's"});
    return empty && onnxruntime_log().take(std::chrono::milliseconds(0), dropped).size() == 1;
  }));
  std::uint64_t dropped = 0;
  const auto records = onnxruntime_log().take(std::chrono::milliseconds(0), dropped);
  ASSERT_FALSE(records.empty());
  EXPECT_EQ(records.back().message, "the parent's");
}

// In a process of its own, where no library is open yet.
class LibraryDeathTest : public testing::Test {
 protected:
  LibraryDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(LibraryDeathTest, IsAskedForBeforeItIsOpen) {
  EXPECT_EXIT(
      {
        constexpr auto type = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
        float number = 0;
        const bool good =
            throws(ErrorKind::library, {"not been opened"}, [] { OnnxRuntime::get(); }) &&
            throws(ErrorKind::library, {"not been opened"},
                   [&] { Value::over(&number, type, {1}, Device::cpu(), {}); }) &&
            throws(ErrorKind::library, {"not been opened"}, [&] { Value::allocate(type, {1}, Device::cpu()); });
        _exit(good && !OnnxRuntime::is_open() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(LibraryDeathTest, SaysWhatIsWrongWithOthersAndOpensTheRightOneAfterwards) {
  EXPECT_EXIT(
      {
        const TemporaryFolder folder;
        const std::string text = folder.write("libonnxruntime.so", "no library");
        const auto refuses = [](const std::string& path, const char* words) {
          const auto result = throws(ErrorKind::library, {path.c_str(), words}, [&] { OnnxRuntime::open(path); });
          std::cerr << result.message();
          return static_cast<bool>(result) && !OnnxRuntime::is_open();
        };
        bool good = refuses(folder / "not_there.so", "cannot open") && refuses(text, "cannot open") &&
                    refuses("libm.so.6", "OrtGetApiBase") && refuses(ORTMULTI_OLD_ONNXRUNTIME, "1.16.3");
        if (missing_environment().empty()) {
          runtime();
          good = good && OnnxRuntime::is_open();
        }
        _exit(good ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(LibraryDeathTest, IsOpenedOnceByManyThreads) {
  if (const std::string missing = missing_environment(); !missing.empty()) {
    GTEST_SKIP() << missing;
  }
  EXPECT_EXIT(
      {
        std::vector<OnnxRuntime*> found(8);
        std::vector<std::thread> threads;
        threads.reserve(found.size());
        for (auto& one : found) {
          threads.emplace_back([&one] { one = &runtime(); });
        }
        for (auto& thread : threads) {
          thread.join();
        }
        const bool same = std::all_of(found.begin(), found.end(), [&](const auto* one) { return one == found[0]; });
        _exit(same && found[0] != nullptr ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

// In a process of its own, where the environment is not made yet.
class Environment : public LibraryDeathTest {
 protected:
  void SetUp() override {
    if (const std::string missing = missing_environment(); !missing.empty()) {
      GTEST_SKIP() << missing;
    }
  }
  static GlobalThreadPools pools(int intra_op_num_threads) {
    GlobalThreadPools result;
    result.intra_op_num_threads = intra_op_num_threads;
    result.inter_op_num_threads = 1;
    return result;
  }
  static std::shared_ptr<Session> with_global_threads() {
    CreationRequest request;
    request.model = model("add");
    request.sessions = {{}};
    request.options.use_per_session_threads = false;
    return Creation::start(runtime(), request)->take().front();
  }
};

TEST_F(Environment, IsNotMadeByOpeningTheLibrary) {
  EXPECT_EXIT(
      {
        bool good = !runtime().has_env() && !runtime().available_providers().empty();
        OnnxRuntime::set_global_thread_pools(pools(2));
        OnnxRuntime::set_global_thread_pools({6, 1, false, "", true, {}});  // the last one counts
        good = good && !runtime().has_env();
        const std::size_t before = thread_count();
        runtime().env();
        good = good && runtime().has_env() && thread_count() >= before + 5;
        good = good && throws(ErrorKind::fail, {"with global thread pools"},
                              [] { OnnxRuntime::set_global_thread_pools(pools(2)); });
        _exit(good ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(Environment, SessionsUseTheGlobalThreads) {
  EXPECT_EXIT(
      {
        OnnxRuntime::set_global_thread_pools(pools(4));
        runtime().env();
        const std::size_t before = thread_count();
        const auto session = with_global_threads();
        _exit(thread_count() == before && run_add(*session) == sum_of_add() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(Environment, SessionsWithoutThreadsNeedGlobalOnes) {
  EXPECT_EXIT(
      {
        bool good = static_cast<bool>(
            throws(ErrorKind::invalid_argument, {"use_per_session_threads", "configure"}, with_global_threads));
        good = good && throws(ErrorKind::fail, {"without global thread pools"},
                              [] { OnnxRuntime::set_global_thread_pools(pools(2)); });
        _exit(good && run_add(*make_session("add")) == sum_of_add() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(Environment, ForkedChildrenHaveNoGlobalThreads) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer lets no forked child start threads";
#endif
  EXPECT_EXIT(
      {
        OnnxRuntime::set_global_thread_pools(pools(2));
        const auto inherited = with_global_threads();
        const auto good = in_forked_child([&] {
          return throws(ErrorKind::forked, {"created before"}, [&] { run_add(*inherited); }) &&
                 throws(ErrorKind::forked, {"global thread pools"}, with_global_threads) &&
                 run_add(*make_session("add")) == sum_of_add();
        });
        std::cerr << good.message();
        _exit(good && run_add(*inherited) == sum_of_add() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(Environment, LogsFromTheSeverityThatWasSet) {
  EXPECT_EXIT(
      {
        const auto records_of_a_session = [] {
          std::uint64_t dropped = 0;
          make_session("add");
          return onnxruntime_log().take(std::chrono::milliseconds(0), dropped).size();
        };
        OnnxRuntime::set_telemetry(false);
        OnnxRuntime::set_log_severity(0);  // before there is an environment
        bool good = records_of_a_session() > 0;
        OnnxRuntime::set_log_severity(3);
        OnnxRuntime::set_telemetry(true);
        good = good && records_of_a_session() == 0;
        OnnxRuntime::set_log_severity(1);
        good = good && records_of_a_session() > 0;
        _exit(good ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace ortmulti::tests
