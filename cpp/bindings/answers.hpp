#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

#include "core/pool/request.hpp"

namespace ortmulti::bindings {

/// Whether the thread that delivers completions runs in this process.
bool delivers_completions() noexcept;
void set_delivers_completions(bool delivers) noexcept;
/// Frees what belongs to Python, in a thread without the GIL: a worker never waits for it.
void free_without_gil(std::shared_ptr<void> python);

/// The moment when a request is answered, for threads that wait for it without the GIL.
class Arrival {
 public:
  using Clock = std::chrono::steady_clock;

  bool arrived() const noexcept { return arrived_.load(); }
  /// Waits no longer than `until`; returns whether the wait is over.
  bool wait(Clock::time_point until);
  /// Ends all waits, though there is no answer.
  void abandon();

  /// Has the answer delivered. Returns false if it is too late for that: the answer is about to arrive, or is there.
  bool follow();
  /// The request is finished: nobody may follow it any more. Returns whether somebody does.
  bool finish();
  void arrive();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> arrived_{false};
  bool abandoned_ = false;
  bool finished_ = false;
  bool followed_ = false;
};

/// Receives the requests that threads wait for. Followed requests go to the thread that delivers completions, those of
/// a joint run together.
std::shared_ptr<Receiver> thread_answers();

/// What the thread of an event loop is to call, with the GIL. Throws what a task raises beyond itself.
class LoopAnswer {
 public:
  virtual ~LoopAnswer() = default;
  virtual void answer_future() = 0;
};

/// Receives the requests of one event loop, and wakes it once for all that are there: by a file descriptor that the
/// loop watches. The thread of the loop gives the answers to its futures. Needs no other thread that has the GIL.
class LoopAnswers : public Receiver, NonCopyable {
 public:
  LoopAnswers();
  ~LoopAnswers() override;

  int descriptor() const noexcept { return descriptor_; }
  void receive(Requests finished) noexcept override;
  /// Adds what is no request.
  void add(std::shared_ptr<LoopAnswer> answer) noexcept;
  /// Called by the loop, with the GIL. Throws what a task raises beyond itself; the loop is woken for the rest then.
  void deliver();

  /// The loop does not watch any more.
  void close() noexcept { closed_.store(true); }
  bool closed() const noexcept { return closed_.load(); }

 private:
  struct Batch {
    Requests requests;
    std::shared_ptr<LoopAnswer> answer;
    Batch* next = nullptr;
  };

  void push(Batch* batch) noexcept;
  Batch* take() noexcept;

  const int descriptor_;
  std::atomic<Batch*> last_{nullptr};  // a stack; no lock, since deliver() has the GIL
  std::atomic<bool> closed_{false};
};

/// What an event loop keeps as long as it watches.
class LoopWatch : NonCopyable {
 public:
  LoopWatch() : answers_(std::make_shared<LoopAnswers>()) {}
  ~LoopWatch() { answers_->close(); }

  int descriptor() const noexcept { return answers_->descriptor(); }
  void deliver() const {
    const auto answers = answers_;  // a task that goes on may close the loop
    answers->deliver();
  }
  /// Has running_loop() know the loop, in this thread, until it knows another one.
  void remember(pybind11::handle loop) const;

 private:
  std::shared_ptr<LoopAnswers> answers_;
};

/// Sets the function that returns this thread's running event loop; before that, none watches.
void set_running_loop(pybind11::object get_running_loop);

/// The running event loop, and its answers; these are null if it does not watch, or is not the one that this thread
/// remembered last.
struct RunningLoop {
  pybind11::object loop;
  std::shared_ptr<LoopAnswers> answers;
};
RunningLoop running_loop();

pybind11::object new_future(pybind11::handle loop);

/// Gives a loop's future what `make` returns, or the exception that it throws, unless the future has an answer; and
/// resumes the task that awaits it. To be called by the thread of the loop. Throws what the task raised beyond it:
/// KeyboardInterrupt or SystemExit.
void answer_future(const pybind11::object& future, const std::function<pybind11::object()>& make);

}  // namespace ortmulti::bindings
