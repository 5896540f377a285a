#include <dlfcn.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "core/ort/session.hpp"
#include "host_weights.hpp"
#include "test_support.hpp"

namespace {
std::atomic<int> trims{0};
}  // namespace

// In the place of the C library's, which it calls.
extern "C" int malloc_trim(std::size_t pad) __THROW {
  ++trims;
  using Trim = int (*)(std::size_t);
  static const auto trim = reinterpret_cast<Trim>(dlsym(RTLD_NEXT, "malloc_trim"));
  return trim(pad);
}

namespace ortmulti::tests {
namespace {

class SharedSession : public RealSessions {
 protected:
  // A session over a store that nobody else holds.
  std::shared_ptr<Session> open() {
    const auto weights = std::make_shared<HostWeights>(supplied_weights());
    weights_ = weights;
    return make_session_over("supplied", weights, with_threads(1));
  }
  bool freed() const { return weights_.expired(); }

 private:
  std::weak_ptr<const WeightStore> weights_;
};

TEST_F(SharedSession, TheLastHandleFrees) {
  auto first = open();
  const auto second = first->share();
  auto third = first->share();
  first->close();
  EXPECT_TRUE(first->closed());
  EXPECT_FALSE(second->closed());
  EXPECT_TRUE(throws(ErrorKind::closed, {"supplied.onnx"}, [&] { run_ones(*first); }));
  EXPECT_TRUE(throws(ErrorKind::closed, {"supplied.onnx"}, [&] { first->share(); }));
  first.reset();
  EXPECT_EQ(run_ones(*second), result_of_ones());
  third.reset();
  EXPECT_FALSE(freed());
  EXPECT_EQ(run_ones(*second), result_of_ones());
  second->close();
  EXPECT_TRUE(freed());
  EXPECT_EQ(second->inputs().at(0).name, "x");
}

TEST_F(SharedSession, MemoryIsReturnedOnceByTheLast) {
  const auto first = open();
  const auto second = first->share();
  const int before = trims.load();
  first->close();
  EXPECT_EQ(trims.load(), before);
  second->close();
  EXPECT_EQ(trims.load(), before + 1);
  second->close();
  EXPECT_EQ(trims.load(), before + 1);
}

TEST_F(SharedSession, ClosingOneDoesNotWaitForTheOthersRuns) {
  const auto running = make_session("count", LongRun::options());
  const auto idle = running->share();
  const auto last = running->share();
  LongRun run(running);
  idle->close();  // would not come back
  EXPECT_TRUE(idle->closed());
  EXPECT_FALSE(running->closed());
  run.stop();
  running->close();
  EXPECT_FALSE(last->closed());
}

TEST_F(SharedSession, ClosingOneWaitsForItsOwnRuns) {
  const auto running = make_session("count", LongRun::options());
  const auto other = running->share();
  LongRun run(running);
  std::atomic<bool> stopped{false};
  auto closing = std::async(std::launch::async, [&] {
    running->close();
    return stopped.load();
  });
  while (!running->closed()) {  // it is refusing new runs, and waiting
    std::this_thread::yield();
  }
  stopped.store(true);
  run.stop();
  EXPECT_TRUE(closing.get());
}

TEST_F(SharedSession, HandlesRunAndCloseInManyThreads) {
  constexpr int handles = 4;
  constexpr int threads_each = 2;
  for (int round = 0; round < 10; ++round) {
    std::vector<std::shared_ptr<Session>> sessions = {open()};
    while (sessions.size() < handles) {
      sessions.push_back(sessions.back()->share());
    }
    std::atomic<int> ran{0};
    std::promise<void> all_ran;
    std::vector<std::future<bool>> results;
    results.reserve(sessions.size() * threads_each);
    for (const auto& session : sessions) {
      for (int i = 0; i < threads_each; ++i) {
        results.push_back(std::async(std::launch::async, [&, session] {
          bool first = true;
          for (;;) {
            try {
              if (run_ones(*session) != result_of_ones()) {
                return false;
              }
            } catch (const Error& error) {
              return error.kind() == ErrorKind::closed;
            }
            if (first && ++ran == handles * threads_each) {
              all_ran.set_value();
            }
            first = false;
          }
        }));
      }
    }
    all_ran.get_future().wait();
    sessions[0]->close();
    EXPECT_FALSE(freed());
    EXPECT_EQ(run_ones(*sessions[1]), result_of_ones());
    in_threads(handles, [&](int i) { sessions[static_cast<std::size_t>(i)]->close(); });
    EXPECT_TRUE(freed());
    for (auto& result : results) {
      EXPECT_TRUE(result.get());
    }
  }
}

TEST_F(SharedSession, HandlesAreMadeWhileOthersClose) {
  const auto kept = open();
  in_threads(4, [&](int) {
    for (int round = 0; round < 200; ++round) {
      const auto handle = kept->share();
      EXPECT_EQ(run_ones(*handle), result_of_ones());
      handle->close();
    }
  });
  kept->close();
  EXPECT_TRUE(freed());
}

TEST_F(SharedSession, ClosingAllFreesWhoeverStillHoldsHandles) {
  const auto first = open();
  const auto second = first->share();
  const auto third = second->share();
  for (const auto& handle : {first, second, third}) {
    register_for_shutdown(handle);
  }
  close_all_sessions();
  for (const auto& handle : {first, second, third}) {
    EXPECT_TRUE(handle->closed());
  }
  EXPECT_TRUE(freed());
}

}  // namespace
}  // namespace ortmulti::tests
