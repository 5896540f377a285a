#include <gtest/gtest.h>

#include <functional>
#include <iostream>

#include "core/ort/session.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

class ForkedSession : public RealSessions {
 protected:
  static bool refuses(const std::function<void()>& call) {
    const auto result = throws(ErrorKind::forked, {"add.onnx", "forked", "spawn"}, call);
    std::cerr << result.message();
    return static_cast<bool>(result);
  }
};

TEST_F(ForkedSession, WithAPoolIsRefusedInTheChildAndGoesOnInTheParent) {
  auto session = make_session("add", with_threads(2));
  EXPECT_TRUE(in_forked_child([&] {
    const bool good = refuses([&] { run_add(*session); }) && refuses([&] { session->end_profiling(); }) &&
                      refuses([&] { session->share(); });
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
  const auto session = make_session("count", LongRun::options());
  LongRun run(session);
  EXPECT_TRUE(in_forked_child([&] {
    session->close();
    return session->closed();
  }));
  run.stop();
}

}  // namespace
}  // namespace ortmulti::tests
