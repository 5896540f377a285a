#include "core/base/left_threads.hpp"

#include <chrono>
#include <utility>

namespace ortmulti {

LeftThreads::Thread LeftThreads::start(std::function<void()> work) {
  std::promise<void> exit;
  std::future<void> exited = exit.get_future();
  std::thread thread([work = std::move(work), exit = std::move(exit)]() mutable {
    work();
    work = nullptr;
    exit.set_value_at_thread_exit();
  });
  return {std::move(thread), std::move(exited)};
}

void LeftThreads::leave(Thread thread) {
  const std::lock_guard lock(mutex_);
  for (auto left = threads_.begin(); left != threads_.end();) {
    if (left->exited.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
      left->thread.join();
      left = threads_.erase(left);
    } else {
      ++left;
    }
  }
  threads_.push_back(std::move(thread));
}

void LeftThreads::join() {
  std::list<Thread> threads;
  {
    const std::lock_guard lock(mutex_);
    threads.swap(threads_);
  }
  for (Thread& left : threads) {
    left.thread.join();
  }
}

std::size_t LeftThreads::size() {
  const std::lock_guard lock(mutex_);
  return threads_.size();
}

}  // namespace ortmulti
