#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

namespace ortmulti {

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
