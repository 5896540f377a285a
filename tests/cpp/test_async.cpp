#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/base/async_runs.hpp"
#include "core/ort/session.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

TEST(AsyncRuns, OfOneThreadAreDoneInOrder) {
  AsyncRuns runs;
  std::vector<int> done;
  for (int i = 0; i < 100; ++i) {
    runs.push([&done, i](bool cancelled) { done.push_back(cancelled ? -1 : i); }, 1);
  }
  runs.close(false);
  ASSERT_EQ(done.size(), 100U);
  EXPECT_TRUE(std::ranges::is_sorted(done));
  EXPECT_EQ(done.front(), 0);
}

TEST(AsyncRuns, AreDoneAtTheSameTimeByAsManyThreadsAsAllowed) {
  AsyncRuns runs;
  constexpr int threads = 3;
  std::promise<void> go_on;
  const std::shared_future<void> going_on = go_on.get_future().share();
  std::atomic<int> begun{0};
  std::promise<void> all_begun;
  std::atomic<int> at_once{0};
  std::atomic<int> most{0};
  for (int i = 0; i < 4 * threads; ++i) {
    runs.push(
        [&, going_on](bool /*cancelled*/) {
          const int now = ++at_once;
          for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
          }
          if (++begun == threads) {
            all_begun.set_value();
          }
          going_on.wait();
          --at_once;
        },
        threads);
  }
  all_begun.get_future().wait();  // hangs if there are fewer
  go_on.set_value();
  runs.close(false);
  EXPECT_EQ(begun, 4 * threads);
  EXPECT_EQ(most, threads);
}

TEST(AsyncRuns, EveryCloseReturnsAfterTheLast) {
  AsyncRuns runs;
  std::atomic<bool> done{false};
  std::promise<void> go_on;
  const std::shared_future<void> going_on = go_on.get_future().share();
  runs.push(
      [&, going_on](bool) {
        going_on.wait();
        done = true;
      },
      1);
  const auto close = [&] {
    runs.close(false);
    return done.load();
  };
  auto first = std::async(std::launch::async, close);
  auto second = std::async(std::launch::async, close);
  go_on.set_value();
  EXPECT_TRUE(first.get());
  EXPECT_TRUE(second.get());
}

TEST(AsyncRuns, OfAForkedChildAreItsOwn) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer lets no forked child start threads";
#endif
  AsyncRuns runs;
  std::promise<void> begun;
  std::promise<void> go_on;
  runs.push(
      [&](bool) {
        begun.set_value();
        go_on.get_future().wait();
      },
      1);
  begun.get_future().wait();
  EXPECT_TRUE(in_forked_child([&runs] {
    bool done = false;
    runs.push([&done](bool) { done = true; }, 1);
    runs.close(false);
    return done;
  }));
  EXPECT_TRUE(in_forked_child([] {
    const AsyncRuns unused;
    return true;
  }));
  go_on.set_value();
  runs.close(false);
}

TEST(AsyncRuns, CallsAreAllDoneInOneThread) {
  AsyncRuns runs;
  std::set<std::thread::id> ids;
  in_threads(4, [&](int) {
    for (int i = 0; i < 100; ++i) {
      runs.call([&] { ids.insert(std::this_thread::get_id()); });  // one by one, so that they need no lock
    }
  });
  EXPECT_EQ(ids.size(), 1U);
  EXPECT_EQ(ids.count(std::this_thread::get_id()), 0U);
}

TEST(AsyncRuns, CallsThrowWhatTheWorkThrows) {
  AsyncRuns runs;
  EXPECT_THROW(runs.call([] { throw std::runtime_error("no"); }), std::runtime_error);
  bool done = false;
  runs.call([&done] { done = true; });
  EXPECT_TRUE(done);
}

class SessionLater : public RealSessions {};

TEST_F(SessionLater, TheProcessesEndCancelsWhatHasNotBegun) {
  const auto session = make_session("add", with_threads(1));
  register_for_shutdown(session);
  std::promise<void> begun;
  std::promise<void> go_on;
  std::vector<bool> cancelled;
  session->run_later([&](bool cancel) {
    cancelled.push_back(cancel);
    begun.set_value();
    go_on.get_future().wait();
  });
  session->run_later([&](bool cancel) { cancelled.push_back(cancel); });
  begun.get_future().wait();
  auto closing = std::async(std::launch::async, close_all_sessions);
  for (bool refused = false; !refused;) {
    try {
      session->run_later([&](bool cancel) { cancelled.push_back(cancel); });
    } catch (const Error& error) {
      refused = error.kind() == ErrorKind::closed;
    }
  }
  go_on.set_value();
  closing.get();
  EXPECT_FALSE(cancelled.at(0));
  EXPECT_TRUE(cancelled.at(1));
  EXPECT_TRUE(session->closed());
}

TEST(Completions, OfAForkedChildAreItsOwn) {
  completions().push([] {});
  EXPECT_TRUE(in_forked_child([] {
    int called = 0;
    completions().push([&called] { ++called; });
    const auto taken = completions().take().items;
    taken.at(0)();
    return taken.size() == 1 && called == 1;
  }));
  EXPECT_EQ(completions().take().items.size(), 1U);
}

}  // namespace
}  // namespace ortmulti::tests
