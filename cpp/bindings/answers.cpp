#include "bindings/answers.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

#include "bindings/errors.hpp"
#include "bindings/gil.hpp"
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

// The answers that the running loop delivers now, in this thread.
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

// The callback of the one task that awaits a future, taken from it. The loop would call it in its next turn, which is a
// sixth of what an awaited tiny request costs.
struct Awaiting {
  py::object callback;
  py::object context;

  void resume(const py::object& future) const {
    if (!callback) {
      return;
    }
    if (PyContext_Enter(context.ptr()) != 0) {
      throw py::error_already_set();
    }
    const auto returned = py::reinterpret_steal<py::object>(PyObject_CallOneArg(callback.ptr(), future.ptr()));
    if (PyContext_Exit(context.ptr()) != 0 || !returned) {
      throw py::error_already_set();
    }
  }
};

// Takes the callback of a task that awaits the future from it. Returns nothing for other futures, which call back
// through the loop.
Awaiting take_awaiting(const py::object& future) {
  static PyObject* const callbacks = PyUnicode_InternFromString("_callbacks");
  static PyObject* const remove = PyUnicode_InternFromString("remove_done_callback");
  const auto all = py::reinterpret_steal<py::object>(PyObject_GetAttr(future.ptr(), callbacks));
  if (!all) {
    PyErr_Clear();
    return {};
  }
  if (PyList_Check(all.ptr()) == 0 || PyList_GET_SIZE(all.ptr()) != 1) {
    return {};
  }
  PyObject* const one = PyList_GET_ITEM(all.ptr(), 0);
  if (PyTuple_Check(one) == 0 || PyTuple_GET_SIZE(one) != 2 || PyContext_CheckExact(PyTuple_GET_ITEM(one, 1)) == 0) {
    return {};
  }
  Awaiting task{py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(one, 0)),
                py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(one, 1))};
  static_cast<void>(owned(PyObject_CallMethodOneArg(future.ptr(), remove, task.callback.ptr())));
  return task;
}

}  // namespace

bool delivers_completions() noexcept { return delivering().load() == getpid(); }

void set_delivers_completions(bool delivers) noexcept { delivering().store(delivers ? getpid() : 0); }

void free_without_gil(std::shared_ptr<void> python) {
  if (delivers_completions()) {
    completions().push([python = std::move(python)] {});
  } else {
    const AcquireGil gil;
    python.reset();
  }
}

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
  push(new Batch{.requests = std::move(finished), .answer = {}});
}

void LoopAnswers::add(std::shared_ptr<LoopAnswer> answer) noexcept {  // NOLINT(bugprone-exception-escape)
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory,bugprone-unhandled-exception-at-new): deliver() frees it
  push(new Batch{.requests = {}, .answer = std::move(answer)});
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
      if (const auto answer = std::move(batch->answer)) {
        answer->answer_future();
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

void answer_future(const py::object& future, const std::function<py::object()>& make) {
  static PyObject* const done = PyUnicode_InternFromString("done");
  static PyObject* const set_result = PyUnicode_InternFromString("set_result");
  static PyObject* const set_exception = PyUnicode_InternFromString("set_exception");
  Awaiting task;
  try {
    PyObject* method = set_result;
    py::object value;
    try {
      value = make();
    } catch (...) {
      method = set_exception;
      value = to_python(std::current_exception());
    }
    task = take_awaiting(future);
    // With a callback the future has no answer.
    if (!task.callback && owned(PyObject_CallMethodNoArgs(future.ptr(), done)).ptr() == Py_True) {
      return;
    }
    static_cast<void>(owned(PyObject_CallMethodOneArg(future.ptr(), method, value.ptr())));
  } catch (const std::exception&) {
    discard_as_unraisable(future);
  }
  task.resume(future);
}

py::object new_future(py::handle loop) {
  static PyObject* const create_future = PyUnicode_InternFromString("create_future");
  return owned(PyObject_CallMethodNoArgs(loop.ptr(), create_future));
}

}  // namespace ortmulti::bindings
