#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "core/base/non_copyable.hpp"

namespace ortmulti::bindings {

namespace py = pybind11;

[[noreturn]] inline void wait_for_the_end() noexcept {
  for (;;) {
    pause();
  }
}

/// Releases the GIL for its lifetime, as pybind11's gil_scoped_release does, in daemon threads too: when one of these
/// asks for the GIL of an interpreter that is ending, Python before 3.14 ends the thread by unwinding its stack, which
/// C++ turns into the process's abort. Here the thread waits for the process's end, as with newer Python.
class ReleaseGil : NonCopyable {
 public:
  ReleaseGil() : state_(PyEval_SaveThread()) {}
  ~ReleaseGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {  // the unwinding; it must not be left
      wait_for_the_end();
    }
  }

 private:
  PyThreadState* state_;
};

/// Acquires the GIL for its lifetime, as pybind11's gil_scoped_acquire does, in daemon threads as above: also where a
/// destructor of the core's gives a Python object up.
class AcquireGil : NonCopyable {
 public:
  AcquireGil() noexcept {
    try {
      gil_.emplace();
    } catch (const std::exception&) {  // there is no memory for a thread's state
      std::terminate();
    } catch (...) {
      wait_for_the_end();
    }
  }

 private:
  std::optional<py::gil_scoped_acquire> gil_;
};

using Nogil = py::call_guard<ReleaseGil>;

/// Whether this thread holds the GIL. Once the process has made a subinterpreter, PyGILState_Check says so of every
/// thread. After Python's end it says so, too.
inline bool has_gil() noexcept {
  const PyThreadState* const current = py::detail::get_thread_state_unchecked();
  return PyGILState_Check() != 0 &&
         (Py_IsInitialized() == 0 || (current != nullptr && current == PyGILState_GetThisThreadState()));
}

/// Calls it without the GIL, from a thread that may hold it or not, and returns what it returns.
auto without_gil(const auto& function) {
  std::optional<ReleaseGil> nogil;
  if (Py_IsInitialized() != 0 && has_gil()) {
    nogil.emplace();
  }
  return function();
}

/// The same object; where this is the last reference to it, it is freed without the GIL.
template <typename T>
std::shared_ptr<T> freed_without_gil(std::shared_ptr<T> object) {
  T* const pointer = object.get();
  return std::shared_ptr<T>(pointer, [held = std::move(object)](T*) mutable { without_gil([&] { held.reset(); }); });
}

}  // namespace ortmulti::bindings
