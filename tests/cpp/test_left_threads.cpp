// Threads that nobody waits for.

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "core/base/left_threads.hpp"

namespace ortmulti::tests {
namespace {

void wait_for(const LeftThreads::Thread& thread) {
  while (!thread.ended->load()) {
    std::this_thread::yield();
  }
}

TEST(LeftThreads, ThoseThatEndedGoWhenTheNextComes) {
  LeftThreads threads;
  std::promise<void> end;
  threads.leave(LeftThreads::start([&] { end.get_future().wait(); }));
  for (int i = 0; i < 20; ++i) {
    LeftThreads::Thread thread = LeftThreads::start([] {});
    wait_for(thread);
    threads.leave(std::move(thread));
  }
  EXPECT_EQ(threads.size(), 2U);
  end.set_value();
  threads.join();
  EXPECT_EQ(threads.size(), 0U);
}

TEST(LeftThreads, WhatAThreadHoldsIsFreedBeforeItCountsAsEnded) {
  const auto held = std::make_shared<int>(0);
  LeftThreads::Thread thread = LeftThreads::start([held] { static_cast<void>(held); });
  wait_for(thread);
  EXPECT_EQ(held.use_count(), 1);
  thread.thread.join();
}

}  // namespace
}  // namespace ortmulti::tests
