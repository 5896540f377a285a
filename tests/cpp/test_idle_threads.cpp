// Threads of a pool on a GPU that do not run its session any more: they end, and others take their places.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "core/base/scope_exit.hpp"
#include "core/policy/idle_memory.hpp"
#include "core/policy/numbers.hpp"
#include "failing_threads.hpp"
#include "fake_runner.hpp"

namespace ortmulti::tests {
namespace {

std::atomic<int> ended_threads{0};

// Counts the end of the calling thread.
void count_end() {
  thread_local const ScopeExit end([] { ++ended_threads; });
  static_cast<void>(end);
}

TEST(IdleThreadTest, IsOneThatDidNotRunTheSessionForAWhile) {
  IdleThread thread;
  for (std::size_t i = 0; i < 2 * *numbers::idle_looks_until_threads; ++i) {
    EXPECT_FALSE(thread.look(false)) << "it never ran the session";
  }
  EXPECT_FALSE(thread.watched());
  for (int times = 0; times < 2; ++times) {
    EXPECT_FALSE(thread.look(true));
    for (std::size_t i = 1; i < *numbers::idle_looks_until_threads; ++i) {
      EXPECT_FALSE(thread.look(false));
      EXPECT_TRUE(thread.watched());
    }
    EXPECT_EQ(thread.look(times == 0), times == 1) << "it ran the session again";
  }
  EXPECT_FALSE(thread.watched());
  EXPECT_FALSE(thread.look(false)) << "the next one has run nothing";
}

class IdleThreads : public PoolWithFakes {
 protected:
  void SetUp() override {
    PoolWithFakes::SetUp();
    Pool::Options options;
    options.trim_after = std::chrono::seconds(10);
    options.now = [this] { return began + std::chrono::seconds(5) * looks.load(); };
    pool = Pool::make(options);
    ended_threads = 0;
  }

  void TearDown() override {
    for (const auto& runner : runners) {
      runner->release();
    }
    PoolWithFakes::TearDown();
  }

  // So many runners of one session.
  void add_runners(const std::optional<std::size_t>& at_first, const Device& device) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto runner = std::make_shared<FakeRunner>(device, this);
      runner->action = [this, self = runner.get()](Request&) {
        count_end();
        if (by_session) {
          self->note_session_run();
        }
      };
      runners.push_back(runner);
    }
    pool->add({runners.begin(), runners.end()}, at_first);
  }

  // Each runner has a run, all at the same time.
  void run_all() {
    hold_all();
    for (const auto& runner : runners) {
      runner->release();
    }
    answers.wait_for(runners.size());
    answers.clear();
  }
  void hold_all() {
    for (const auto& runner : runners) {
      runner->hold();
    }
    std::vector<std::size_t> before;
    for (const auto& runner : runners) {
      before.push_back(runner->runs().size());
      submit();
    }
    for (std::size_t i = 0; i < runners.size(); ++i) {
      runners[i]->wait_for_runs(before[i] + 1);
    }
  }

  bool look(std::size_t times = 1) {
    bool watched = false;
    for (std::size_t i = 0; i < times; ++i) {
      ++looks;
      watched = pool->give_back_surplus();
    }
    return watched;
  }
  int shrunk() const {
    int times = 0;
    for (const auto& runner : runners) {
      times += runner->shrunk;
    }
    return times;
  }
  static void wait_for_ends(int ends) {
    while (ended_threads < ends) {
      std::this_thread::yield();
    }
  }

  static constexpr std::size_t count = 3;
  const std::size_t until_due = *numbers::idle_looks_until_threads;
  std::vector<std::shared_ptr<FakeRunner>> runners;
  std::atomic<bool> by_session{true};  // else by graphs beside it
  const Pool::Clock::time_point began = Pool::Clock::now();
  std::atomic<int> looks{0};
};

TEST_F(IdleThreads, EndButForTheFirstAndOthersTakeTheirPlaces) {
  add_runners(count, Device::cuda(0));
  EXPECT_FALSE(look(2 * until_due)) << "nothing has run";
  run_all();
  EXPECT_TRUE(look(until_due));
  EXPECT_EQ(ended_threads, 0);
  EXPECT_TRUE(look());
  wait_for_ends(count - 1);
  EXPECT_EQ(shrunk(), 0) << "they may not have ended yet";
  EXPECT_FALSE(look());
  EXPECT_EQ(shrunk(), 1) << "no run came that would have freed what they had";
  EXPECT_FALSE(runners[0]->in_next_run || runners[1]->in_next_run || runners[2]->in_next_run);
  run_all();  // by three threads at the same time
  EXPECT_EQ(ended_threads, static_cast<int>(count) - 1);
}

TEST_F(IdleThreads, LeaveWhatTheyHadToTheNextRunWhereOneComes) {
  add_runners(count, Device::cuda(0));
  run_all();
  look(until_due + 1);
  wait_for_ends(count - 1);
  runners.front()->note_session_run();
  EXPECT_FALSE(look());
  EXPECT_EQ(shrunk(), 0);
}

TEST_F(IdleThreads, EndBetweenTwoRunsByGraphsWhileRequestsWait) {
  add_runners(count, Device::cuda(0));
  run_all();
  by_session = false;
  hold_all();
  for (std::size_t i = 0; i < 3 * count; ++i) {
    submit();
  }
  look(until_due + 1);
  EXPECT_EQ(ended_threads, 0) << "they run";
  for (const auto& runner : runners) {
    runner->release();
  }
  answers.wait_for(4 * count);
  wait_for_ends(count - 1);
}

TEST_F(IdleThreads, StayWhereTheNumberOfRunsWasGiven) {
  add_runners(std::nullopt, Device::cuda(0));
  run_all();
  EXPECT_FALSE(look(2 * until_due));
  run_all();
  EXPECT_EQ(ended_threads, 0);
}

TEST_F(IdleThreads, StayOnTheCpu) {
  add_runners(count, Device::cpu());
  run_all();
  EXPECT_FALSE(look(2 * until_due));
  run_all();
  EXPECT_EQ(ended_threads, 0);
}

TEST_F(IdleThreads, StayWhereTheSystemHasNoThread) {
  add_runners(count, Device::cuda(0));
  for (const auto& runner : runners) {
    runner->action = [self = runner.get()](Request&) {
      thread_local const NoThreads none;
      count_end();
      self->note_session_run();
    };
  }
  run_all();
  look(until_due + 1);
  run_all();
  EXPECT_EQ(ended_threads, 0);
}

TEST_F(IdleThreads, AreJoinedWithThoseThatTookTheirPlaces) {
  add_runners(count, Device::cuda(0));
  for (int times = 1; times <= 3; ++times) {
    run_all();
    look(until_due + 1);
    wait_for_ends(times * (static_cast<int>(count) - 1));
  }
  run_all();
  pool->close(false);
  EXPECT_EQ(ended_threads, 4 * static_cast<int>(count) - 3);
}

TEST_F(IdleThreads, AreReplacedBesideAnyRequests) {
  constexpr std::size_t clients = 4;
  constexpr std::size_t each = 500;
  std::atomic<int> runs{0};
  add_runners(count, Device::cuda(0));
  for (const auto& runner : runners) {
    runner->action = [&runs, self = runner.get()](Request&) {
      count_end();
      if (++runs % 20 == 1) {
        self->note_session_run();
      }
    };
  }
  {
    const std::jthread looks_on([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        look();
      }
    });
    std::vector<std::jthread> threads;
    threads.reserve(clients);
    for (std::size_t client = 0; client < clients; ++client) {
      threads.emplace_back([this] {
        for (std::size_t i = 0; i < each; ++i) {
          submit();
        }
      });
    }
    answers.wait_for(clients * each);
  }
  answers.clear();
  run_all();
}

}  // namespace
}  // namespace ortmulti::tests
