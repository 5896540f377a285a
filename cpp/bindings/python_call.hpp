#pragma once

#include <pybind11/pybind11.h>

#include <exception>
#include <future>
#include <memory>
#include <utility>

#include "bindings/errors.hpp"
#include "bindings/gil.hpp"
#include "core/base/async_runs.hpp"

namespace ortmulti::bindings {

/// Frees Python's objects with the GIL. A thread without it may hold a lock, and leaves them to the one that calls
/// back.
struct WithGil {
  template <typename Held>
  void operator()(Held* held) const {  // NOLINT(bugprone-exception-escape): out of memory ends the process
    std::shared_ptr<Held> owner(held);
    if (!has_gil()) {
      completions().push([owner = std::move(owner)] {});
    }
  }
};

/// A Python function that is called by threads of the core, without the GIL, and freed in any thread.
class PythonCall {
 public:
  explicit PythonCall(pybind11::object call) : call_(new pybind11::object(std::move(call))) {}

  template <typename... Arguments>
  void operator()(Arguments&&... arguments) const {
    const AcquireGil gil;
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
      const AcquireGil gil;
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
  std::unique_ptr<pybind11::object, WithGil> call_;
};

}  // namespace ortmulti::bindings
