#pragma once

#include <atomic>
#include <cstddef>
#include <functional>

#include "core/base/hand_over_queue.hpp"
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
  /// Has the one thread of an object with this call alone do the work; waits for its end, and throws what it throws.
  void call(const std::function<void()>& work);

  /// Refuses further runs, and returns when all queued runs are done. `cancel` cancels runs that have not begun. In a
  /// forked child the parent's threads are left alone.
  void close(bool cancel);

 private:
  struct State;

  State& state();

  std::atomic<State*> state_{nullptr};  // left to the parent in a forked child: a thread of it may have held its lock
};

/// Finished runs on their way to the callback thread, which calls and frees these.
using Completion = std::function<void()>;
using Completions = HandOverQueue<Completion>;

/// The process's queue, never freed. A forked child has a new, empty one.
Completions& completions();

}  // namespace ortmulti
