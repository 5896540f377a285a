#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <future>
#include <memory>
#include <string>

#include "core/ort/session.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

class ForkedSession : public RealSessions {
 protected:
  static SessionOptions with_threads(int count) {
    SessionOptions options;
    options.intra_op_num_threads = count;
    return options;
  }
  static bool refuses(const std::function<void()>& call) {
    const auto result = throws(ErrorKind::forked, {"add.onnx", "forked", "spawn"}, call);
    std::cerr << result.message();
    return static_cast<bool>(result);
  }
};

TEST_F(ForkedSession, WithAPoolIsRefusedInTheChildAndGoesOnInTheParent) {
  auto session = make_session("add", with_threads(2));
  EXPECT_TRUE(in_forked_child([&] {
    const bool good = refuses([&] { run_add(*session); }) && refuses([&] { session->end_profiling(); });
    session->close();
    session.reset();  // does not wait for threads that are not there
    return good;
  }));
  EXPECT_EQ(run_add(*session), sum_of_add());
}

TEST_F(ForkedSession, WithOneThreadRunsInTheChild) {
  auto session = make_session("add", with_threads(1));
  EXPECT_TRUE(in_forked_child([&] {
    const bool good = run_add(*session) == sum_of_add();
    session->close();
    const bool closed = static_cast<bool>(throws(ErrorKind::closed, {"add.onnx"}, [&] { run_add(*session); }));
    session.reset();
    return good && closed;
  }));
  EXPECT_EQ(run_add(*session), sum_of_add());
}

TEST_F(ForkedSession, InParallelModeHasAPoolToo) {
  SessionOptions options = with_threads(1);
  options.execution_mode = ORT_PARALLEL;
  options.inter_op_num_threads = 2;
  const auto session = make_session("add", options);
  EXPECT_TRUE(in_forked_child([&] { return refuses([&] { run_add(*session); }); }));
}

TEST_F(ForkedSession, OfTheChildIsIndependent) {
  const auto session = make_session("add", with_threads(2));
  EXPECT_TRUE(in_forked_child([&] {
    const auto own = make_session("add", with_threads(1));
    register_for_shutdown(own);
    const bool good = run_add(*own) == sum_of_add();
    close_all_sessions();
    return good && own->closed() && !session->closed();
  }));
}

TEST_F(ForkedSession, ClosingAllInTheChildLeavesTheParents) {
  const auto session = make_session("add", with_threads(2));
  register_for_shutdown(session);
  EXPECT_TRUE(in_forked_child([&] {
    close_all_sessions();
    return true;
  }));
  EXPECT_FALSE(session->closed());
  EXPECT_EQ(run_add(*session), sum_of_add());
}

TEST_F(ForkedSession, IsClosedInTheChildAlthoughAThreadOfTheParentRunsIt) {
  SessionOptions options = with_threads(1);
  options.enable_cpu_mem_arena = false;  // its lock may be taken at the moment of the fork
  options.enable_mem_pattern = false;
  options.log_severity_level = 1;
  const auto session = make_session("count", options);

  Ort::RunOptions run_options;
  run_options.SetRunTag("counting");
  std::uint64_t dropped = 0;
  onnxruntime_log().take(std::chrono::milliseconds(0), dropped);
  auto running = std::async(std::launch::async, [&] {
    std::int64_t n = std::int64_t{1} << 60;
    const auto memory = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
    const Ort::Value input = Ort::Value::CreateTensor<std::int64_t>(memory, &n, 1, nullptr, 0);
    const char* input_name = "n";
    const char* output_name = "total";
    Ort::Value total{nullptr};
    session->run(run_options, &input_name, &input, 1, &output_name, &total, 1);
  });
  // ONNX Runtime says so when it begins.
  bool begun = false;
  for (bool heard = true; heard && !begun;) {
    const auto records = onnxruntime_log().take(std::chrono::minutes(1), dropped);
    heard = !records.empty();
    begun = std::any_of(records.begin(), records.end(),
                        [](const LogRecord& record) { return record.message.find("counting") != std::string::npos; });
  }
  EXPECT_TRUE(begun);
  EXPECT_TRUE(in_forked_child([&] {
    session->close();
    return session->closed();
  }));
  run_options.SetTerminate();
  EXPECT_THROW(running.get(), Error);
}

}  // namespace
}  // namespace ortmulti::tests
