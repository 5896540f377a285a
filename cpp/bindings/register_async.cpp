#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/answers.hpp"
#include "bindings/errors.hpp"
#include "bindings/gil.hpp"
#include "bindings/registrations.hpp"
#include "bindings/run_options.hpp"
#include "bindings/run_request.hpp"
#include "bindings/text.hpp"
#include "core/base/async_runs.hpp"
#include "core/base/error.hpp"

namespace ortmulti::bindings {
namespace {

// A run whose result goes to a callback. It is made and freed with the GIL, and keeps what it needs: the session, its
// arrays, the options.
class AsyncRun {
 public:
  AsyncRun(std::shared_ptr<Session> session, const py::object& output_names, const py::object& input_feed,
           py::object callback, py::object user_data, const py::object& run_options)
      : session_(std::move(session)),
        options_(to_run_options(run_options)),
        request_(*session_, output_names, input_feed),
        callback_(std::move(callback)),
        user_data_(std::move(user_data)) {}

  Session& session() const noexcept { return *session_; }

  // In any thread, without the GIL.
  void run(bool cancelled) noexcept {
    try {
      if (cancelled) {
        throw Error(ErrorKind::closed, "the session of " + session_->model() + " was closed before this run began");
      }
      outputs_ = request_.run(*session_, *options_);
    } catch (const std::exception& exception) {
      error_ = exception.what();
    }
  }

  // With the GIL.
  void deliver() noexcept {
    try {
      const py::list results = take_results();
      callback_(results, user_data_, decode(error_, "backslashreplace"));
    } catch (const std::exception&) {
      discard_as_unraisable(callback_);
    }
  }

 private:
  // No results where it failed, which includes what cannot be converted.
  py::list take_results() {
    try {
      return request_.to_python(std::move(outputs_));
    } catch (const std::exception& exception) {
      error_ = exception.what();
      return py::list();
    }
  }

  std::shared_ptr<Session> session_;
  std::shared_ptr<const Ort::RunOptions> options_;
  RunRequest request_;
  py::object callback_;
  py::object user_data_;
  std::vector<Ort::Value> outputs_;
  std::string error_;
};

void run_async(std::shared_ptr<Session> session, const py::object& output_names, const py::object& input_feed,
               py::object callback, py::object user_data, const py::object& run_options) {
  const auto run = std::make_shared<AsyncRun>(std::move(session), output_names, input_feed, std::move(callback),
                                              std::move(user_data), run_options);
  // Without the GIL, for which another thread may wait while it closes the session. The last to have `run` is this
  // thread or the one that takes the completion, which both have the GIL then: the thread that runs it passes it on.
  const ReleaseGil nogil;
  run->session().run_later([run = run](bool cancelled) mutable {
    run->run(cancelled);
    completions().push([run = std::move(run)] { run->deliver(); });
  });
}

// Whether there were any: none means the end.
bool deliver_completions() {
  auto done = without_gil([] {
    completions().wait();
    return completions().take().items;
  });
  for (Completion& completion : done) {
    completion();
    completion = nullptr;  // as soon as it is told, what it held is freed
  }
  return !done.empty();
}

}  // namespace

void register_async(py::module_& module) {
  module.def("run_async", &run_async, py::arg("session"), py::arg("output_names"), py::arg("input_feed"),
             py::arg("callback"), py::arg("user_data"), py::arg("run_options"));
  module.def("deliver_completions", &deliver_completions);
  module.def(
      "open_completions",
      [] {
        completions().open();
        set_delivers_completions(true);
      },
      Nogil());
  module.def(
      "close_completions",
      [] {
        set_delivers_completions(false);
        completions().close();
      },
      Nogil());
}

}  // namespace ortmulti::bindings
