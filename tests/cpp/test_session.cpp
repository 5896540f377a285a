#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/base/timeline.hpp"
#include "core/ort/api_compat.hpp"
#include "core/ort/session.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

class SessionTest : public RealSessions {};

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

TEST_F(SessionTest, NamesItsNodesOnTheCpuWhereThatWasRecorded) {
  EXPECT_TRUE(make_session("add")->nodes_on_cpu().empty());
  SessionOptions options;
  options.config_entries[Session::record_assignment] = "1";
  const auto nodes = make_session("add", options)->nodes_on_cpu();
  EXPECT_EQ(std::ranges::any_of(nodes, [](const auto& node) { return node.rfind("Add \"", 0) == 0; }),
            ort_api_compat::assignment_api().has_value());
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

TEST_F(SessionTest, OneWithAStreamOfItsOwnIsCreatedByTheThreadThatLaterCapturesIt) {
  SessionOptions options;
  options.log_severity_level = ORT_LOGGING_LEVEL_INFO;
  const auto creators = [&](const Provider& provider) {
    take_log();
    auto session =
        std::make_shared<Session>(runtime(), ModelSource{model_path("add")}, options, std::vector{provider}, nullptr);
    std::set<std::int64_t> threads;
    for (const LogRecord& record : take_log()) {
      threads.insert(record.thread);
    }
    return std::pair(std::move(session), threads);
  };
  const auto [ordinary, callers] = creators({"CPUExecutionProvider", {}});
  EXPECT_EQ(callers, std::set{this_thread()});
  const auto [session, own] =
      creators({"CPUExecutionProvider", {{"user_compute_stream", Session::own_compute_stream}}});
  for (int i = 0; i < 2; ++i) {
    std::int64_t later = 0;
    session->in_own_thread([&later] { later = this_thread(); });
    EXPECT_EQ(own, std::set{later});
    EXPECT_NE(later, this_thread());
  }
  EXPECT_THROW(session->in_own_thread([] { throw std::out_of_range("no"); }), std::out_of_range);
  session->close();
  EXPECT_THROW(session->in_own_thread([] {}), Error);
}

TEST_F(SessionTest, OneWithAStreamOfItsOwnSaysWhyItCannotBeCreated) {
  EXPECT_TRUE(throws(ErrorKind::no_such_file, {"missing.onnx"}, [] {
    const Session session(runtime(), ModelSource{"missing.onnx"}, {},
                          {{"CPUExecutionProvider", {{"user_compute_stream", Session::own_compute_stream}}}}, nullptr);
  }));
}

}  // namespace
}  // namespace ortmulti::tests
