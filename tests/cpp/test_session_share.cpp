#include <dlfcn.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
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

SessionOptions with_threads(int count) {
  SessionOptions options;
  options.intra_op_num_threads = count;
  return options;
}

class SharedSession : public RealSessions {
 protected:
  // A session over a store that nobody else holds.
  std::shared_ptr<Session> open(const SessionOptions& options = with_threads(1)) {
    const auto weights = std::make_shared<HostWeights>(supplied_weights());
    weights_ = weights;
    return make_session_over("supplied", weights, options);
  }
  bool freed() const { return weights_.expired(); }

 private:
  std::weak_ptr<const WeightStore> weights_;
};

// Counts up in a thread of its own, until it is told to stop.
class LongRun {
 public:
  static std::shared_ptr<Session> session() {
    SessionOptions options = with_threads(1);
    options.log_severity_level = 1;
    return make_session("count", options);
  }
  explicit LongRun(std::shared_ptr<Session> session) {
    options_.SetRunTag("counting");
    std::uint64_t dropped = 0;
    onnxruntime_log().take(std::chrono::milliseconds(0), dropped);
    running_ = std::async(std::launch::async, [this, session = std::move(session)] {
      std::int64_t n = std::int64_t{1} << 60;
      const Ort::Value input = Ort::Value::CreateTensor<std::int64_t>(HostWeights::host(), &n, 1, nullptr, 0);
      const char* input_name = "n";
      const char* output_name = "total";
      Ort::Value total{nullptr};
      session->run(options_, &input_name, &input, 1, &output_name, &total, 1);
    });
    // ONNX Runtime says so when it begins.
    for (bool heard = true; heard && !begun_;) {
      const auto records = onnxruntime_log().take(std::chrono::minutes(1), dropped);
      heard = !records.empty();
      begun_ = std::any_of(records.begin(), records.end(), [](const LogRecord& record) {
        return record.message.find("counting") != std::string::npos;
      });
    }
  }
  bool begun() const { return begun_; }
  void stop() {
    options_.SetTerminate();
    EXPECT_THROW(running_.get(), Error);
  }

 private:
  Ort::RunOptions options_;
  bool begun_ = false;
  std::future<void> running_;
};

TEST_F(SharedSession, HandlesGiveTheSameAndDescribeTheSame) {
  const auto first = open();
  const auto second = first->share();
  const auto third = second->share();
  for (const auto& handle : {first, second, third}) {
    EXPECT_EQ(run_ones(*handle), result_of_ones());
    EXPECT_EQ(&handle->inputs(), &first->inputs());
    EXPECT_EQ(handle->model(), first->model());
    EXPECT_EQ(handle->device(), Device::cpu());
    EXPECT_EQ(handle->weight_use().used, 2U);
    EXPECT_EQ(handle->profiling_start_time_ns(), first->profiling_start_time_ns());
  }
}

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
  const auto running = LongRun::session();
  const auto idle = running->share();
  const auto last = running->share();
  LongRun run(running);
  EXPECT_TRUE(run.begun());
  idle->close();  // would not come back
  EXPECT_TRUE(idle->closed());
  EXPECT_FALSE(running->closed());
  run.stop();
  running->close();
  EXPECT_FALSE(last->closed());
}

TEST_F(SharedSession, ClosingOneWaitsForItsOwnRuns) {
  const auto running = LongRun::session();
  const auto other = running->share();
  LongRun run(running);
  EXPECT_TRUE(run.begun());
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
    std::vector<std::future<void>> closers;
    closers.reserve(sessions.size());
    for (const auto& session : sessions) {
      closers.push_back(std::async(std::launch::async, [session] { session->close(); }));
    }
    for (auto& closer : closers) {
      closer.get();
    }
    EXPECT_TRUE(freed());
    for (auto& result : results) {
      EXPECT_TRUE(result.get());
    }
  }
}

TEST_F(SharedSession, HandlesAreMadeWhileOthersClose) {
  const auto kept = open();
  constexpr int threads = 4;
  std::vector<std::future<bool>> results;
  results.reserve(threads);
  for (int i = 0; i < threads; ++i) {
    results.push_back(std::async(std::launch::async, [&] {
      bool good = true;
      for (int round = 0; round < 200; ++round) {
        const auto handle = kept->share();
        good = good && run_ones(*handle) == result_of_ones();
        handle->close();
      }
      return good;
    }));
  }
  for (auto& result : results) {
    EXPECT_TRUE(result.get());
  }
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

TEST_F(SharedSession, InAForkedChildIsRunAndClosedThereAlone) {
  auto first = open(with_threads(1));
  auto second = first->share();
  EXPECT_TRUE(in_forked_child([&] {
    const bool good = run_ones(*first) == result_of_ones();
    auto third = first->share();
    first->close();
    first.reset();
    const bool others = run_ones(*second) == result_of_ones() && run_ones(*third) == result_of_ones();
    second.reset();
    third.reset();
    return good && others && !freed();  // left to the parent
  }));
  EXPECT_EQ(run_ones(*first), result_of_ones());
  first->close();
  EXPECT_EQ(run_ones(*second), result_of_ones());
  second->close();
  EXPECT_TRUE(freed());
}

TEST_F(SharedSession, WithAPoolIsRefusedInTheChild) {
  const auto first = open(with_threads(2));
  const auto second = first->share();
  EXPECT_TRUE(in_forked_child([&] {
    return throws(ErrorKind::forked, {"supplied.onnx", "spawn"}, [&] { run_ones(*second); }) &&
           throws(ErrorKind::forked, {"supplied.onnx", "spawn"}, [&] { second->share(); });
  }));
  EXPECT_EQ(run_ones(*second), result_of_ones());
}

}  // namespace
}  // namespace ortmulti::tests
