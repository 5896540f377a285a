#pragma once

#include <pybind11/pybind11.h>

#include <exception>
#include <future>
#include <memory>
#include <utility>

#include "bindings/answers.hpp"
#include "bindings/errors.hpp"

namespace ortmulti::bindings {

/// A Python function that is called by threads of the core, without the GIL, and freed in any thread.
class PythonCall {
 public:
  explicit PythonCall(pybind11::object call) : call_(new pybind11::object(std::move(call))) {}
  ~PythonCall() {  // NOLINT(bugprone-exception-escape): out of memory ends the process
    if (PyGILState_Check() == 0) {
      completions().push(
          [call = std::shared_ptr<pybind11::object>(std::move(call_))] {});  // the thread may hold a lock
    }
  }
  PythonCall(const PythonCall&) = delete;
  PythonCall& operator=(const PythonCall&) = delete;

  template <typename... Arguments>
  void operator()(Arguments&&... arguments) const {
    const pybind11::gil_scoped_acquire gil;
    try {
      (*call_)(std::forward<Arguments>(arguments)...);
    } catch (const pybind11::error_already_set& failure) {
      throw from_python(failure.value());
    }
  }

  /// The same for a function that calls its argument when it is done, with None, or with an exception. Waits until
  /// then.
  void wait() const {
    const auto done = std::make_shared<std::promise<void>>();
    {
      const pybind11::gil_scoped_acquire gil;
      (*this)(pybind11::cpp_function([done](const pybind11::object& exception) {
        if (exception.is_none()) {
          done->set_value();
        } else {
          done->set_exception(std::make_exception_ptr(from_python(exception)));
        }
      }));
    }
    done->get_future().get();
  }

 private:
  std::unique_ptr<pybind11::object> call_;
};

}  // namespace ortmulti::bindings
