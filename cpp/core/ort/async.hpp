#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <vector>

namespace ortmulti {

/// Runs for which their caller does not wait: threads of this object do them, in the order in which they came and
/// several at a time. Threads are started when they are needed, and stay until close().
class AsyncRuns {
 public:
  /// Called once, with true where it is not to be done any more. It must not throw, nor close this object.
  using Run = std::function<void(bool cancelled)>;

  AsyncRuns() = default;
  ~AsyncRuns();
  AsyncRuns(const AsyncRuns&) = delete;
  AsyncRuns& operator=(const AsyncRuns&) = delete;

  /// Throws Error, with ErrorKind::closed after close(); then the run is not called.
  void push(Run run, std::size_t max_threads);

  /// Takes no more, and returns when all that were given are done. With `cancel`, those that have not begun are
  /// cancelled. Threads of a parent process, which this one does not have, are left alone.
  void close(bool cancel);

 private:
  struct State;

  State& state();

  std::atomic<State*> state_{nullptr};  // left to the parent in a forked child: a thread of it may have held its lock
};

/// What is done, on its way to the one thread that tells those who asked for it. Who has done something never waits for
/// that thread, which takes all that there is at once.
class Completions {
 public:
  /// Tells somebody. It is called, and freed, by the thread that took it.
  using Completion = std::function<void()>;

  void push(Completion completion);

  /// Waits for some, and takes all, the first one first. None after close(), when all were taken.
  std::vector<Completion> take();

  /// Ends the waiting of the thread that takes them. What is pushed later waits for open().
  void close();
  void open();

 private:
  std::mutex mutex_;
  std::condition_variable filled_;
  std::vector<Completion> waiting_;
  bool closed_ = false;
};

/// This process's, never freed. A forked child has a new, empty one.
Completions& completions();

}  // namespace ortmulti
