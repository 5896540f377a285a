#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <vector>

#include "core/base/non_copyable.hpp"

namespace ortmulti {

/// A queue of runs, done by threads of this object in the order of the pushes, several at a time. Threads are started
/// when they are needed, and stay until close().
class AsyncRuns : NonCopyable {
 public:
  /// Called once, with true if the run was cancelled. It must not throw, nor close this object.
  using Run = std::function<void(bool cancelled)>;

  ~AsyncRuns();

  /// Throws Error, with ErrorKind::closed after close(); then the run is not called.
  void push(Run run, std::size_t max_threads);

  /// Refuses further runs, and returns when all queued runs are done. `cancel` cancels runs that have not begun. In a
  /// forked child the parent's threads are left alone.
  void close(bool cancel);

 private:
  struct State;

  State& state();

  std::atomic<State*> state_{nullptr};  // left to the parent in a forked child: a thread of it may have held its lock
};

/// The queue of finished runs, drained by the callback thread. push() never waits for that thread.
class Completions {
 public:
  /// Notifies the caller of a run. The callback thread calls and frees it.
  using Completion = std::function<void()>;

  void push(Completion completion);

  /// Waits for completions, and takes all in the order of the pushes. Empty after close(), when all were taken.
  std::vector<Completion> take();

  /// Ends take(). Completions pushed later wait for open().
  void close();
  void open();

 private:
  std::mutex mutex_;
  std::condition_variable filled_;
  std::vector<Completion> waiting_;
  bool closed_ = false;
};

/// The process's queue, never freed. A forked child has a new, empty one.
Completions& completions();

}  // namespace ortmulti
