#include "bindings/answers.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

#include "bindings/pool_request.hpp"
#include "bindings/text.hpp"
#include "core/base/async_runs.hpp"
#include "core/base/error.hpp"

namespace ortmulti::bindings {
namespace {

std::atomic<pid_t>& delivering() {
  static std::atomic<pid_t> process{0};
  return process;
}

// The loop that a thread ran last. Another loop may have its address later: then the watch of the first is closed.
struct RecentLoop {
  PyObject* loop = nullptr;  // not to be used unless its watch is open
  std::weak_ptr<LoopAnswers> answers;
};

PyObject* loop_getter = nullptr;  // asyncio's get_running_loop: kept up to the end of the process

// Those that the running loop delivers now, in this thread.
thread_local const LoopAnswers* delivering_answers = nullptr;

RecentLoop& recent_loop() {
  thread_local RecentLoop recent;
  return recent;
}

class ThreadAnswers : public Receiver {
 public:
  void receive(Requests finished) noexcept override {  // NOLINT(bugprone-exception-escape)
    Requests followed;
    for (auto& request : finished) {
      const std::shared_ptr<Arrival> arrival = static_cast<PoolRequest&>(*request).arrival();
      if (arrival->finish()) {
        followed.push_back(std::move(request));
      }
      // Before others may have the last reference, whose owner has the GIL.
      request.reset();
      arrival->arrive();
    }
    if (!followed.empty()) {
      completions().push([followed = std::move(followed)] {
        for (const auto& request : followed) {
          static_cast<PoolRequest&>(*request).deliver();
        }
      });
    }
  }
};

}  // namespace

bool delivers_completions() noexcept { return delivering().load() == getpid(); }

void set_delivers_completions(bool delivers) noexcept { delivering().store(delivers ? getpid() : 0); }

bool Arrival::wait(Clock::time_point until) {
  if (arrived()) {
    return true;
  }
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, until, [this] { return arrived() || abandoned_; });
}

void Arrival::abandon() {
  const std::lock_guard lock(mutex_);
  abandoned_ = true;
  changed_.notify_all();
}

bool Arrival::follow() {
  const std::lock_guard lock(mutex_);
  followed_ = followed_ || !finished_;
  return !finished_;
}

bool Arrival::finish() {
  const std::lock_guard lock(mutex_);
  finished_ = true;
  return followed_;
}

void Arrival::arrive() {
  const std::lock_guard lock(mutex_);
  arrived_.store(true);
  changed_.notify_all();
}

std::shared_ptr<Receiver> thread_answers() {
  // Leaked: requests may be answered up to the end of the process.
  static const auto& answers =
      *new std::shared_ptr<Receiver>(std::make_shared<ThreadAnswers>());  // NOLINT(cppcoreguidelines-owning-memory)
  return answers;
}

LoopAnswers::LoopAnswers() : descriptor_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (descriptor_ < 0) {
    throw Error(ErrorKind::fail, "cannot make an event descriptor for the event loop: " +
                                     std::generic_category().message(errno) + ": allow this process more open files");
  }
}

LoopAnswers::~LoopAnswers() {
  ::close(descriptor_);
  for (Batch* batch = take(); batch != nullptr;) {
    delete std::exchange(batch, batch->next);  // NOLINT(cppcoreguidelines-owning-memory)
  }
}

void LoopAnswers::receive(Requests finished) noexcept {  // NOLINT(bugprone-exception-escape)
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory,bugprone-unhandled-exception-at-new): deliver() frees it
  push(new Batch{std::move(finished)});
}

void LoopAnswers::push(Batch* batch) noexcept {
  Batch* previous = last_.load();
  do {
    batch->next = previous;
  } while (!last_.compare_exchange_weak(previous, batch));
  if (previous == nullptr) {  // else the loop was woken, and has not taken yet what is there
    constexpr std::uint64_t one = 1;
    static_cast<void>(write(descriptor_, &one, sizeof(one)));
  }
}

LoopAnswers::Batch* LoopAnswers::take() noexcept {
  Batch* first = nullptr;
  for (Batch* batch = last_.exchange(nullptr); batch != nullptr;) {
    Batch* const before = std::exchange(batch->next, first);
    first = std::exchange(batch, before);
  }
  return first;
}

void LoopAnswers::deliver() {
  std::uint64_t count = 0;
  // Before the requests are taken: who adds some after that wakes the loop again.
  static_cast<void>(read(descriptor_, &count, sizeof(count)));
  delivering_answers = this;
  Batch* batch = take();
  try {
    while (batch != nullptr) {
      for (auto& finished : batch->requests) {
        if (const auto request = std::move(finished)) {
          static_cast<PoolRequest&>(*request).answer_future();
        }
      }
      delete std::exchange(batch, batch->next);  // NOLINT(cppcoreguidelines-owning-memory)
    }
  } catch (...) {  // the loop ends, and may run again
    while (batch != nullptr) {
      push(std::exchange(batch, batch->next));
    }
    delivering_answers = nullptr;
    throw;
  }
  delivering_answers = nullptr;
}

void LoopWatch::remember(py::handle loop) const { recent_loop() = {loop.ptr(), answers_}; }

void set_running_loop(py::object get_running_loop) { loop_getter = get_running_loop.release().ptr(); }

RunningLoop running_loop() {
  if (loop_getter == nullptr) {
    return {};
  }
  const RecentLoop& recent = recent_loop();
  auto answers = recent.answers.lock();
  if (answers && answers->closed()) {
    answers = nullptr;
  }
  if (answers && answers.get() == delivering_answers) {  // asyncio's function asks the kernel for the process
    return {py::reinterpret_borrow<py::object>(recent.loop), std::move(answers)};
  }
  auto loop = owned(PyObject_CallNoArgs(loop_getter));
  if (recent.loop != loop.ptr()) {
    answers = nullptr;
  }
  return {std::move(loop), std::move(answers)};
}

py::object new_future(py::handle loop) {
  static PyObject* const create_future = PyUnicode_InternFromString("create_future");
  return owned(PyObject_CallMethodNoArgs(loop.ptr(), create_future));
}

}  // namespace ortmulti::bindings
