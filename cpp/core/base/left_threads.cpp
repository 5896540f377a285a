#include "core/base/left_threads.hpp"

#include <utility>

namespace ortmulti {

LeftThreads::Thread LeftThreads::start(std::function<void()> work) {
  const auto ended = std::make_shared<std::atomic<bool>>(false);
  std::thread thread([work = std::move(work), ended]() mutable {
    work();
    work = nullptr;
    ended->store(true);
  });
  return {std::move(thread), ended};
}

void LeftThreads::leave(Thread thread) {
  const std::lock_guard lock(mutex_);
  for (auto left = threads_.begin(); left != threads_.end();) {
    if (left->ended->load()) {
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
