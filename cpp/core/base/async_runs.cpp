#include "core/base/async_runs.hpp"

#include <condition_variable>
#include <deque>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/fork.hpp"

namespace ortmulti {

struct AsyncRuns::State {
  const unsigned generation = fork_generation();
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Run> waiting;
  std::size_t idle = 0;
  bool closed = false;
  bool cancelled = false;
  std::vector<std::jthread> threads;
  std::mutex joining;  // held while threads are joined, so that every close() returns after that

  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      ++idle;
      changed.wait(lock, [this] { return closed || !waiting.empty(); });
      --idle;
      if (waiting.empty()) {
        return;
      }
      Run run = std::move(waiting.front());
      waiting.pop_front();
      const bool cancel = cancelled;
      lock.unlock();
      run(cancel);
      run = nullptr;
      lock.lock();
    }
  }
};

AsyncRuns::~AsyncRuns() {
  close(false);
  State* state = state_.load();
  if (state != nullptr && state->generation == fork_generation()) {
    delete state;  // NOLINT(cppcoreguidelines-owning-memory): left alone in a forked child
  }
}

AsyncRuns::State& AsyncRuns::state() {
  State* current = state_.load();
  while (current == nullptr || current->generation != fork_generation()) {
    auto* made = new State();  // NOLINT(cppcoreguidelines-owning-memory): the destructor's, unless of a parent
    if (state_.compare_exchange_strong(current, made)) {
      return *made;
    }
    delete made;  // NOLINT(cppcoreguidelines-owning-memory)
  }
  return *current;
}

void AsyncRuns::push(Run run, std::size_t max_threads) {
  State& state = this->state();
  const std::lock_guard lock(state.mutex);
  if (state.closed) {
    throw Error(ErrorKind::closed, "closed");
  }
  state.waiting.push_back(std::move(run));
  if (state.waiting.size() > state.idle && state.threads.size() < max_threads) {
    try {
      state.threads.emplace_back(&State::work, &state);
    } catch (const std::exception& error) {
      if (state.threads.empty()) {
        state.waiting.pop_back();
        throw Error(ErrorKind::fail, std::string("cannot start a thread for asynchronous runs: ") + error.what());
      }
    }
  }
  state.changed.notify_one();
}

void AsyncRuns::call(const std::function<void()>& work) {
  const auto task = std::make_shared<std::packaged_task<void()>>(std::ref(work));
  std::future<void> done = task->get_future();
  push([task](bool /*cancelled*/) { (*task)(); }, 1);
  done.get();
}

void AsyncRuns::close(bool cancel) {
  State& state = this->state();
  {
    const std::lock_guard lock(state.mutex);
    state.closed = true;
    state.cancelled = state.cancelled || cancel;
  }
  state.changed.notify_all();
  const std::lock_guard joining(state.joining);
  state.threads.clear();
}

Completions& completions() { return process_singleton<Completions>(); }

}  // namespace ortmulti
