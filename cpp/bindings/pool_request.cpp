#include "bindings/pool_request.hpp"

#include <utility>

#include "bindings/errors.hpp"
#include "bindings/gil.hpp"
#include "bindings/run_options.hpp"
#include "bindings/text.hpp"
#include "core/base/error.hpp"
#include "core/ort/async.hpp"

namespace py = pybind11;

namespace ortmulti::bindings {

PoolRequest::PoolRequest(std::shared_ptr<Session> session, const py::object& wanted, const py::object& feed,
                         const py::object& options, const std::string& device_name) {
  // A pool may convert the arguments again, with a session of the next model.
  if (!wanted.is_none() && !py::isinstance<py::sequence>(wanted)) {
    throw Error(
        ErrorKind::invalid_type,
        "output_names of a pool must be a list or tuple of str, or None for all outputs, not " + class_name(wanted));
  }
  given_options_ = to_run_options(options);
  if (!options.is_none()) {
    run_options = given_options_.get();
  }
  if (!device_name.empty()) {
    device = parse_device(device_name);
  }
  python_ = std::make_unique<Python>();
  if (session) {
    convert(std::move(session), wanted, feed);
    return;
  }
  python_->wanted = wanted;
  python_->feed = RunRequest::copy_feed(feed);
}

void PoolRequest::convert(std::shared_ptr<Session> session, const py::object& wanted, const py::object& feed) {
  RunRequest& values = python_->values.emplace(*session, wanted, feed);
  python_->session = std::move(session);
  output_names = values.output_names();
  inputs = values.take_inputs();
}

void PoolRequest::prepare(const std::shared_ptr<Session>& session) {
  if (python_->session) {
    return;
  }
  const py::gil_scoped_acquire gil;
  convert(freed_without_gil(session), python_->wanted, python_->feed);
  python_->wanted = py::object();
  python_->feed = py::object();
}

PoolRequest::~PoolRequest() {  // NOLINT(bugprone-exception-escape): out of memory ends the process
  inputs = RunInputs();        // before the arrays that they lie over
  outputs.clear();
  if (!output_owners.empty()) {
    without_gil([&] { output_owners.clear(); });
  }
  if (PyGILState_Check() != 0) {
    python_.reset();
  } else {
    const py::gil_scoped_acquire gil;
    python_.reset();
  }
}

py::list PoolRequest::take_results() {
  if (error) {
    std::rethrow_exception(error);
  }
  const auto& values = python_->values;
  if (!values) {
    throw Error(ErrorKind::fail, "the request did not run");
  }
  if (!outputs_on_device) {
    return values->to_python(std::move(outputs));
  }
  return values->to_values(std::move(outputs), std::move(output_owners));
}

void PoolRequest::make_endable() {
  if (run_options == nullptr) {
    own_run_options.emplace();
    run_options = &*own_run_options;
  }
}

void PoolRequest::tell(py::object future, py::object complete) {
  python_->future = std::move(future);
  python_->complete = std::move(complete);
  finished = [](std::shared_ptr<Request> request) {
    completions().push([request = std::move(request)] { static_cast<PoolRequest&>(*request).deliver(); });
  };
}

void PoolRequest::deliver() noexcept {  // NOLINT(bugprone-exception-escape): out of memory ends the process
  const py::object future = std::exchange(python_->future, py::object());
  const py::object complete = std::exchange(python_->complete, py::object());
  try {
    py::object results = py::none();
    py::object exception = py::none();
    try {
      results = take_results();
    } catch (...) {
      exception = to_python(std::current_exception());
    }
    complete(future, results, exception, outcome == Outcome::cancelled);
  } catch (py::error_already_set& failure) {
    failure.discard_as_unraisable(future);
  } catch (const std::exception& failure) {
    PyErr_SetString(PyExc_RuntimeError, failure.what());
    PyErr_WriteUnraisable(future.ptr());
  }
}

std::shared_ptr<Arrival> Arrival::of(Request& request) {
  auto arrival = std::make_shared<Arrival>();
  request.finished = [arrival](const std::shared_ptr<Request>& /*finished*/) {
    const std::lock_guard lock(arrival->mutex_);
    arrival->arrived_ = true;
    arrival->changed_.notify_all();
  };
  return arrival;
}

bool Arrival::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [this] { return arrived_; });
}

}  // namespace ortmulti::bindings
