// Memory that comes back: when a pool gives it back, what it gives back, and what is done where it is missing.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/base/retry.hpp"
#include "core/memory/device_memory.hpp"
#include "core/ort/caller_threads.hpp"
#include "core/ort/session.hpp"
#include "core/ort/value.hpp"
#include "core/policy/idle_memory.hpp"
#include "core/policy/numbers.hpp"
#include "fake_runner.hpp"
#include "test_support.hpp"

namespace ortmulti::tests {
namespace {

using std::chrono::seconds;

constexpr std::uint64_t mega = 1'000'000;

Session::Arena arena_of(std::uint64_t held, std::uint64_t used, std::uint64_t most_used) {
  return {held * mega, used * mega, most_used * mega, nullptr};
}

TEST(CallerThreadsTest, HaveFewThreadsDoTheWorkOfMany) {
  CallerThreads callers;
  std::mutex mutex;
  std::set<std::thread::id> worked;
  std::atomic<int> done{0};
  const auto work = [&] {
    const std::lock_guard lock(mutex);
    worked.insert(std::this_thread::get_id());
    ++done;
  };
  std::promise<void> end;
  const auto ended = end.get_future().share();
  std::vector<std::thread> threads;
  threads.reserve(40);
  for (int i = 0; i < 40; ++i) {
    threads.emplace_back([&, ended] {
      for (int run = 0; run < 10; ++run) {
        EXPECT_TRUE(callers.call([&] { EXPECT_TRUE(callers.call(work)); }));
      }
      ended.wait();  // so that each has its place as long as others come
    });
  }
  while (done.load() < 400) {
    std::this_thread::yield();
  }
  end.set_value();
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_LE(worked.size(), CallerThreads::max_direct_callers + CallerThreads::max_helpers);
  EXPECT_GT(worked.size(), CallerThreads::max_direct_callers);
  std::thread::id by;
  std::thread later([&] { callers.call([&] { by = std::this_thread::get_id(); }); });
  const std::thread::id id = later.get_id();
  later.join();
  EXPECT_EQ(by, id) << "the places of threads that have ended are free";
}

TEST(CallerThreadsTest, GetWhatTheWorkThrowsAndAreRefusedAfterTheEnd) {
  CallerThreads callers;
  std::vector<std::thread> threads;
  std::promise<void> end;
  const auto ended = end.get_future().share();
  std::atomic<int> there{0};
  threads.reserve(CallerThreads::max_direct_callers);
  for (std::size_t i = 0; i < CallerThreads::max_direct_callers; ++i) {
    threads.emplace_back([&, ended] {
      callers.call([&] { ++there; });
      ended.wait();
      EXPECT_NO_THROW(callers.call([] {})) << "it has a place";
    });
  }
  while (there.load() < static_cast<int>(CallerThreads::max_direct_callers)) {
    std::this_thread::yield();
  }
  EXPECT_THROW(callers.call([] { throw std::out_of_range("no"); }), std::out_of_range);
  callers.close();
  EXPECT_FALSE(callers.call([] {}));
  end.set_value();
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(IdleMemoryTest, IsThereOnceALargeRequestWasWholeLooksAgo) {
  IdleMemory idle_memory;
  EXPECT_FALSE(idle_memory.look(10).memory);
  EXPECT_FALSE(idle_memory.look(100).memory);
  EXPECT_FALSE(idle_memory.look(10).memory);
  EXPECT_TRUE(idle_memory.look(10).memory);
  idle_memory.given_back(true);
  EXPECT_FALSE(idle_memory.look(10).memory) << "it was given back";
  EXPECT_FALSE(idle_memory.look(15).memory) << "more than half";
  EXPECT_FALSE(idle_memory.look(10).memory);
  EXPECT_FALSE(idle_memory.look(10).memory);
}

TEST(IdleMemoryTest, IsThereAFewTimesMoreWhereRunsWereInTheWay) {
  IdleMemory idle_memory;
  idle_memory.look(100);
  idle_memory.look(10);
  for (std::size_t i = 0; i < *numbers::idle_max_tries; ++i) {
    EXPECT_TRUE(idle_memory.look(10).memory);
    idle_memory.given_back(false);
  }
  EXPECT_FALSE(idle_memory.look(10).memory);
  idle_memory.look(100);
  idle_memory.look(10);
  EXPECT_TRUE(idle_memory.look(10).memory);
  idle_memory.given_back(true);
  EXPECT_FALSE(idle_memory.look(10).memory);
}

TEST(IdleMemoryTest, IsThereOnceNothingIsAskedForAnyMore) {
  IdleMemory idle_memory;
  EXPECT_FALSE(idle_memory.watched());
  EXPECT_FALSE(idle_memory.look(10).memory);
  EXPECT_FALSE(idle_memory.look(0).memory);
  EXPECT_TRUE(idle_memory.look(0).memory);
  idle_memory.given_back(true);
  bool graphs = false;
  for (std::size_t i = 2; i < *numbers::idle_looks_until_graphs; ++i) {
    EXPECT_TRUE(idle_memory.watched());
    EXPECT_FALSE(graphs);
    const IdleMemory::Due due = idle_memory.look(0);
    EXPECT_FALSE(due.memory);
    graphs = due.graphs;
  }
  EXPECT_TRUE(graphs);
  EXPECT_FALSE(idle_memory.watched());
  EXPECT_FALSE(idle_memory.look(0).graphs);
}

class MemoryOfPools : public PoolWithFakes {
 protected:
  void make(std::optional<std::chrono::nanoseconds> trim_after) {
    Pool::Options options;
    options.trim_after = trim_after;
    options.now = [this] { return now; };
    pool = Pool::make(options);
  }
  // As many looks later.
  bool look(std::size_t looks = 1) {
    bool watched = false;
    for (std::size_t i = 0; i < looks; ++i) {
      now += seconds(5);
      watched = pool->give_back_surplus();
    }
    return watched;
  }

  Pool::Clock::time_point now = Pool::Clock::now();
};

TEST_F(MemoryOfPools, ComesBackOnceForEachSession) {
  make(seconds(10));
  const int session = 0;
  const auto one = std::make_shared<FakeRunner>(Device::cuda(0), &session);
  const auto other = std::make_shared<FakeRunner>(Device::cuda(0), &session);
  const auto idle = std::make_shared<FakeRunner>(Device::cuda(1));
  pool->add({one, other, idle});
  EXPECT_FALSE(look(3)) << "nothing has run";
  other->note_run(100);
  EXPECT_TRUE(look(2));
  EXPECT_EQ(one->shrunk + other->shrunk, 0);
  now += seconds(4);
  EXPECT_TRUE(pool->give_back_surplus()) << "it is to be asked again";
  EXPECT_EQ(one->shrunk + other->shrunk, 0);
  now += seconds(1);
  EXPECT_TRUE(pool->give_back_surplus());
  EXPECT_EQ(one->shrunk + other->shrunk, 1) << "once for a session";
  EXPECT_EQ(one->freed, 1);
  EXPECT_EQ(other->freed, 1);
  EXPECT_EQ(idle->shrunk, 0);
  EXPECT_FALSE(one->in_next_run || other->in_next_run) << "none may come";
  EXPECT_EQ(pool->stats().devices.front().trims, 1U);
}

TEST_F(MemoryOfPools, IsGivenBackByTheNextRunWhileRequestsCome) {
  make(seconds(10));
  const auto runner = add(Device::cpu());
  const auto small_request = [&] {
    runner->note_run(10);
    return look();
  };
  runner->arena_now = arena_of(100, 0, 100);
  runner->note_run(100);
  look();
  small_request();
  small_request();
  EXPECT_EQ(runner->shrunk, 1);
  EXPECT_TRUE(runner->in_next_run);
  EXPECT_EQ(pool->stats().devices.front().trims, 0U) << "no run came";
  runner->arena_now = arena_of(1, 0, 100);
  small_request();
  EXPECT_EQ(runner->shrunk, 1);
  EXPECT_EQ(pool->stats().devices.front().trims, 1U);
  small_request();
  EXPECT_EQ(pool->stats().devices.front().trims, 1U);
}

TEST_F(MemoryOfPools, IsGivenBackAtOnceWhereNoRunOfTheSessionCame) {
  make(seconds(10));
  const auto runner = add(Device::cpu());
  runner->arena_now = arena_of(100, 0, 100);
  runner->note_run(100);
  look();
  for (int i = 0; i < 2; ++i) {
    runner->note_run(10);
    look();
  }
  EXPECT_TRUE(runner->in_next_run);
  runner->note_run(10);  // by a graph: the arena is as it was
  look();
  EXPECT_EQ(runner->shrunk, 2);
  EXPECT_FALSE(runner->in_next_run);
}

TEST_F(MemoryOfPools, StaysWhereItIsTooLittle) {
  make(seconds(10));
  const auto runner = add(Device::cpu());
  runner->arena_now = arena_of(30, 20, 30);
  runner->note_run(100);
  look(3);
  EXPECT_EQ(runner->shrunk, 0);
  runner->arena_now = arena_of(40, 20, 30);
  runner->note_run(100);
  look(3);
  EXPECT_EQ(runner->shrunk, 1);
  EXPECT_EQ(pool->stats().devices.front().trims, 0U) << "nothing came back";
  look(*numbers::idle_max_tries);
  EXPECT_EQ(static_cast<std::size_t>(runner->shrunk), *numbers::idle_max_tries);
  const Session::Arena arena = pool->stats().devices.front().arena.value_or(Session::Arena());
  EXPECT_EQ(arena.held, 40 * mega);
  EXPECT_EQ(arena.used, 20 * mega);
  EXPECT_EQ(arena.most_used, 30 * mega);
}

TEST_F(MemoryOfPools, GraphsGoAfterALongerTime) {
  make(seconds(10));
  const auto runner = std::make_shared<FakeRunner>(Device::cuda(0));
  int dropped = 0;
  runner->dropping_graphs = [&dropped] { return ++dropped != 0; };
  pool->add({runner});
  runner->note_run(100);
  EXPECT_TRUE(look(*numbers::idle_looks_until_graphs));
  EXPECT_EQ(dropped, 0);
  EXPECT_FALSE(look());
  EXPECT_EQ(dropped, 1);
}

TEST_F(MemoryOfPools, StaysWithoutATime) {
  make(std::nullopt);
  const auto runner = add(Device::cpu());
  runner->note_run(100);
  EXPECT_FALSE(look(5));
  EXPECT_EQ(runner->shrunk, 0);
}

TEST_F(MemoryOfPools, ComesBackByItself) {
  Pool::Options options;
  options.trim_after = std::chrono::nanoseconds(2);
  pool = Pool::make(options);
  const auto runner = add(Device::cpu());
  runner->note_run(100);
  const auto end = Pool::Clock::now() + seconds(60);
  while (runner->shrunk == 0 && Pool::Clock::now() < end) {
    std::this_thread::yield();
  }
  EXPECT_EQ(runner->shrunk, 1);
}

TEST_F(MemoryOfPools, ComesBackWhereItIsMissing) {
  make(std::nullopt);
  const auto here = add(Device::cuda(0));
  const auto elsewhere = add(Device::cuda(1));
  int dropped = 0;
  here->dropping_graphs = [&dropped] { return ++dropped != 0; };
  const auto other = Pool::make({});
  const auto others = std::make_shared<FakeRunner>(Device::cuda(0));
  other->add({others});
  int tries = 0;
  const Device gpu = Device::cuda(0);
  const auto missing = [&tries, &gpu](int times) {
    return with_retries({device_memory::lack(gpu)}, [&tries, times] {
      if (++tries <= times) {
        throw Error(ErrorKind::out_of_memory, "no memory");
      }
      return tries;
    });
  };
  EXPECT_EQ(missing(1), 2);
  EXPECT_EQ(here->shrunk, 1);
  EXPECT_EQ(others->shrunk, 1);
  EXPECT_EQ(elsewhere->shrunk, 0);
  EXPECT_EQ(dropped, 1);
  tries = 0;
  EXPECT_EQ(missing(2), 3) << "an answer may be held for a moment longer";
  EXPECT_EQ(others->shrunk, 3);
  tries = 0;
  EXPECT_THROW(missing(3), Error);
  EXPECT_EQ(tries, 3);
  EXPECT_EQ(others->shrunk, 5);
  other->close(true);
  tries = 0;
  EXPECT_EQ(missing(1), 2);
  EXPECT_EQ(others->shrunk, 5) << "it is closed";
}

TEST_F(MemoryOfPools, NothingIsAskedForWhereAnythingElseIsWrong) {
  make(std::nullopt);
  const auto runner = add(Device::cuda(0));
  const Device gpu = Device::cuda(0);
  EXPECT_THROW(with_retries({device_memory::lack(gpu)}, [] { throw Error(ErrorKind::fail, "wrong"); }), Error);
  EXPECT_EQ(runner->shrunk, 0);
}

TEST(RetryTest, ReasonsAddUpAndDoNotMultiply) {
  std::vector<std::size_t> lacks;
  const Retry lack{
      .concerns = is_lack_of_memory, .times = 2, .prepare = [&](std::size_t before) { lacks.push_back(before); }};
  const Retry failure{.concerns = [](const Error& error) { return error.kind() == ErrorKind::fail; }};
  int tries = 0;
  const auto fails_as = [&tries](std::vector<ErrorKind> kinds) {
    return [&tries, kinds = std::move(kinds)] {
      if (static_cast<std::size_t>(tries++) < kinds.size()) {
        throw Error(kinds[static_cast<std::size_t>(tries) - 1], std::to_string(tries));
      }
      return tries;
    };
  };
  using enum ErrorKind;
  EXPECT_EQ(with_retries({lack, failure}, fails_as({out_of_memory, fail, out_of_memory})), 4);
  EXPECT_EQ(lacks, (std::vector<std::size_t>{0, 1}));
  tries = 0;
  EXPECT_TRUE(throws(fail, {"3"}, [&] { with_retries({lack, failure}, fails_as({fail, out_of_memory, fail, fail})); }));
  EXPECT_EQ(tries, 3);
  tries = 0;
  EXPECT_TRUE(throws(device, {"1"}, [&] { with_retries({lack, failure}, fails_as({device})); }));
}

class MemoryOfSessions : public RealSessions {
 protected:
  static void run(Session& session, std::int64_t elements) {
    RunInputs inputs;
    for (const ValueInfo& input : session.inputs()) {
      inputs.add(input.name.c_str(), tensor({elements / 3, 3}));
    }
    static_cast<void>(session.run(Ort::RunOptions{nullptr}, inputs, name_pointers(session.outputs())));
  }
};

TEST_F(MemoryOfSessions, IsGivenBackToWhatRunsNeed) {
  const auto session = make_session("add");
  const auto arena = [&session] { return session->arena().value_or(Session::Arena()); };
  if (arena().held == 0) {
    GTEST_SKIP() << "this release does not say what its arenas hold";
  }
  constexpr std::int64_t many = 21'000'000;
  run(*session, many);
  const Session::Arena before = arena();
  EXPECT_GE(before.held, many * sizeof(float));
  EXPECT_GE(before.most_used, many * sizeof(float));
  EXPECT_LT(before.used, many * sizeof(float));
  session->shrink_arena(Session::Shrink::now);
  EXPECT_LT(arena().held, before.held / 2);
  run(*session, many);
  EXPECT_GE(arena().held, many * sizeof(float));
  session->close();
  EXPECT_FALSE(session->arena());
  EXPECT_THROW(session->shrink_arena(Session::Shrink::now), Error);
}

}  // namespace
}  // namespace ortmulti::tests
