#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/ort/plugins.hpp"
#include "core/ort/session.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

// The tests' plug-in, whose nodes all run on ONNX Runtime's CPU provider.
class Plugins : public RealSessions {
 protected:
  void SetUp() override {
    RealSessions::SetUp();
    if (!IsSkipped() && std::stoi(runtime().version().substr(2)) < 23) {
      GTEST_SKIP() << "needs ONNX Runtime 1.23 or newer";
    }
  }
  static void register_it() { register_plugin(runtime(), "tests", ORTMULTI_FAKE_PLUGIN); }
  static void unregister_it() { unregister_plugin(runtime(), "tests"); }
  static std::shared_ptr<Session> open() {
    SessionOptions options;
    options.intra_op_num_threads = 1;
    return std::make_shared<Session>(runtime(), model("add"), options,
                                     std::vector<Provider>{with_devices(runtime(), {"fake:CPU", {}})}, nullptr);
  }
};

TEST_F(Plugins, ALibraryStaysUntilTheLastSessionIsClosedInAnotherThread) {
  register_it();
  std::shared_ptr<Session> session = open();
  EXPECT_TRUE(throws(ErrorKind::fail, {"1 session uses its devices"}, unregister_it));
  std::thread closing([held = std::move(session)]() mutable {
    EXPECT_EQ(run_add(*held), sum_of_add());
    held.reset();
  });
  for (bool unregistered = false; !unregistered;) {
    try {
      unregister_it();
      unregistered = true;
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::fail) << error.what();
    }
  }
  closing.join();
  EXPECT_TRUE(throws(ErrorKind::device, {"there is no device fake:CPU"}, [] { open(); }));
}

TEST_F(Plugins, AForkedChildHasTheBuiltInCudaProviderOfAProcessWithPlugins) {
  register_it();
  const bool built_in =
      in_forked_child([] { return with_devices(runtime(), {"CUDAExecutionProvider", {}}).devices.empty(); });
  EXPECT_TRUE(built_in);
  unregister_it();
}

TEST_F(Plugins, SessionsAreCreatedWhileTheirLibraryIsUnregisteredAndRegistered) {
  std::atomic<bool> done{false};
  std::atomic<int> created{0};
  register_it();
  const auto create = [&] {
    while (!done) {
      try {
        EXPECT_EQ(run_add(*open()), sum_of_add());
        ++created;
      } catch (const Error& error) {  // the library is not there, or was there before
        EXPECT_TRUE(error.kind() == ErrorKind::device || error.kind() == ErrorKind::fail) << error.what();
      }
    }
  };
  std::thread one(create);
  std::thread other(create);
  for (int changes = 0; changes < 20 || created < 20;) {
    try {
      unregister_it();
      register_it();
      ++changes;
    } catch (const Error& error) {  // a session uses it
      EXPECT_EQ(error.kind(), ErrorKind::fail) << error.what();
    }
  }
  done = true;
  one.join();
  other.join();
  unregister_it();
}

}  // namespace
}  // namespace ortmulti::tests
