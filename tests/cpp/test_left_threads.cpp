// Threads that nobody waits for.

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <utility>

#include "core/base/left_threads.hpp"

namespace ortmulti::tests {
namespace {

TEST(LeftThreads, ThoseThatExitedGoWhenTheNextComes) {
  LeftThreads threads;
  std::promise<void> end;
  threads.leave(LeftThreads::start([&] { end.get_future().wait(); }));
  for (int i = 0; i < 20; ++i) {
    LeftThreads::Thread thread = LeftThreads::start([] {});
    thread.exited.wait();
    threads.leave(std::move(thread));
  }
  EXPECT_EQ(threads.size(), 2U);
  end.set_value();
  threads.join();
  EXPECT_EQ(threads.size(), 0U);
}

// As ONNX Runtime's CUDA provider has them, whose destructors wait for the GPU.
TEST(LeftThreads, NobodyWaitsForTheDestructorsOfAThreadsObjects) {
  struct Wait {
    void operator()(std::future<void>* end) const { end->wait(); }
  };
  LeftThreads threads;
  std::promise<void> end;
  std::future<void> ended = end.get_future();
  std::promise<void> done;
  threads.leave(LeftThreads::start([&] {
    thread_local std::unique_ptr<std::future<void>, Wait> waits;  // a declaration that the thread itself runs through
    waits.reset(&ended);
    done.set_value();
  }));
  done.get_future().wait();
  threads.leave(LeftThreads::start([] {}));
  EXPECT_EQ(threads.size(), 2U);
  end.set_value();
  threads.join();
}

TEST(LeftThreads, WhatAThreadHoldsIsFreedInIt) {
  const auto held = std::make_shared<int>(0);
  LeftThreads::Thread thread = LeftThreads::start([held] { static_cast<void>(held); });
  thread.exited.wait();
  EXPECT_EQ(held.use_count(), 1);
  thread.thread.join();
}

}  // namespace
}  // namespace ortmulti::tests
