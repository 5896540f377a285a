#include "core/base/left_threads.hpp"

#include <chrono>
#include <utility>

namespace ortmulti {

LeftThreads::Thread LeftThreads::start(std::function<void()> work) {
  std::promise<void> exit;
  std::future<void> exited = exit.get_future();
  std::jthread thread([work = std::move(work), exit = std::move(exit)]() mutable {
    work();
    work = nullptr;
    exit.set_value_at_thread_exit();
  });
  return {std::move(exited), std::move(thread)};
}

void LeftThreads::leave(Thread thread) {
  const std::lock_guard lock(mutex_);
  std::erase_if(threads_, [](const Thread& left) {  // which joins
    return left.exited.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  });
  threads_.push_back(std::move(thread));
}

void LeftThreads::join() {
  std::list<Thread> threads;  // joined without the lock
  const std::lock_guard lock(mutex_);
  threads.swap(threads_);
}

std::size_t LeftThreads::size() {
  const std::lock_guard lock(mutex_);
  return threads_.size();
}

}  // namespace ortmulti
