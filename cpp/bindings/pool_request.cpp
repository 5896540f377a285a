#include "bindings/pool_request.hpp"

#include <chrono>
#include <thread>
#include <utility>

#include "bindings/errors.hpp"
#include "bindings/gil.hpp"
#include "bindings/run_options.hpp"
#include "bindings/signals.hpp"
#include "bindings/tensors.hpp"
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
  takes_rows = true;
  given_options_ = to_run_options(options);
  if (!options.is_none()) {
    run_options = given_options_.get();
  }
  if (!device_name.empty()) {
    device = parse_device(device_name);
  }
  if (session) {
    convert(std::move(session), wanted, feed);
    return;
  }
  python_.wanted = wanted;
  python_.feed = RunRequest::copy_feed(feed);
}

PoolRequest::PoolRequest(const py::object& check, bool joins, const py::object& wanted, const py::object& feed,
                         const std::string& device_name) {
  if (!device_name.empty()) {
    device = parse_device(device_name);
  }
  const py::tuple checked = check(wanted, feed);
  python_.wanted = checked[0];
  python_.feed = checked[1];
  if (joins) {
    add_inputs();
  }
}

void PoolRequest::add_inputs() {
  for (const py::handle name : python_.wanted) {
    output_names.push_back(PyUnicode_AsUTF8(name.ptr()));  // which lives as long as the name
  }
  for (const auto& [name, value] : py::reinterpret_borrow<py::dict>(python_.feed)) {
    try {
      inputs.add(PyUnicode_AsUTF8(name.ptr()), value_over(value));
    } catch (const Error&) {
      inputs = RunInputs();  // it runs alone
      return;
    }
  }
}

py::list PoolRequest::to_arrays() {
  py::list arrays;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    arrays.append(to_array(std::move(outputs[i]), output_names[i], false));
  }
  return arrays;
}

void PoolRequest::convert(std::shared_ptr<Session> session, const py::object& wanted, const py::object& feed) {
  RunRequest& values = python_.values.emplace(*session, wanted, feed);
  python_.session = std::move(session);
  output_names = values.take_output_names();
  inputs = values.take_inputs();
}

void PoolRequest::prepare(const std::shared_ptr<Session>& session) {
  if (python_.session) {
    return;
  }
  const py::gil_scoped_acquire gil;
  convert(freed_without_gil(session), python_.wanted, python_.feed);
  python_.wanted = py::object();
  python_.feed = py::object();
}

PoolRequest::~PoolRequest() {  // NOLINT(bugprone-exception-escape): out of memory ends the process
  inputs = RunInputs();        // before the arrays that they lie over
  clear_outputs();
  if (!output_owners.empty()) {
    without_gil([&] { output_owners.clear(); });
  }
  if (PyGILState_Check() != 0) {
    return;
  }
  auto python = std::make_shared<Python>(std::move(python_));
  if (delivers_completions()) {
    completions().push([python = std::move(python)] {});  // a worker never waits for the GIL
  } else {
    const py::gil_scoped_acquire gil;
    python.reset();
  }
}

py::list PoolRequest::take_results() {
  if (python_.exception) {
    const py::object exception = std::exchange(python_.exception, py::object());
    PyErr_SetObject(py::type::of(exception).ptr(), exception.ptr());
    throw py::error_already_set();
  }
  if (error) {
    std::rethrow_exception(error);
  }
  if (python_.results) {
    return std::exchange(python_.results, py::object());
  }
  if (!outputs.empty() && !python_.session) {
    return to_arrays();
  }
  const auto& values = python_.values;
  if (!values) {
    throw Error(ErrorKind::fail, "the request did not run");
  }
  if (rows.outputs) {
    return values->to_python(std::exchange(rows, {}));
  }
  if (!outputs_on_device) {
    return values->to_python(std::move(outputs));
  }
  return values->to_values(std::move(outputs), std::move(output_owners));
}

void PoolRequest::await_arrival() {
  arrival_ = std::make_shared<Arrival>();
  receiver = thread_answers();
}

py::tuple PoolRequest::answer() {
  py::object results = py::none();
  py::object exception = py::none();
  try {
    results = take_results();
  } catch (...) {
    exception = to_python(std::current_exception());
  }
  return py::make_tuple(std::move(results), std::move(exception), outcome == Outcome::cancelled);
}

py::tuple PoolRequest::take() {
  if (!taking_.exchange(true)) {
    python_.taken = answer();
    taken_.store(true);
  } else if (!taken_.load()) {
    // Another thread converts the outputs. It may have released the GIL for that.
    wait_until([this] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return taken_.load();
    });
  }
  return py::reinterpret_borrow<py::tuple>(python_.taken);
}

bool PoolRequest::follow(py::object future, py::object complete) {
  python_.future = std::move(future);
  python_.complete = std::move(complete);
  const bool followed = [this] {
    const ReleaseGil nogil;
    return arrival_->follow();
  }();
  if (!followed) {
    python_.future = py::object();
    python_.complete = py::object();
  }
  return followed;
}

void PoolRequest::deliver() noexcept {  // NOLINT(bugprone-exception-escape): out of memory ends the process
  const py::object future = std::exchange(python_.future, py::object());
  const py::object complete = std::exchange(python_.complete, py::object());
  try {
    const py::tuple taken = take();
    complete(future, taken[0], taken[1], taken[2]);
  } catch (py::error_already_set& failure) {
    failure.discard_as_unraisable(future);
  } catch (const std::exception& failure) {
    PyErr_SetString(PyExc_RuntimeError, failure.what());
    PyErr_WriteUnraisable(future.ptr());
  }
}

void PoolRequest::set_future(std::shared_ptr<Receiver> loop, py::object future) {
  receiver = std::move(loop);
  python_.future = std::move(future);
}

void PoolRequest::answer_future() noexcept {  // NOLINT(bugprone-exception-escape): out of memory ends the process
  static PyObject* const done = PyUnicode_InternFromString("done");
  static PyObject* const cancel = PyUnicode_InternFromString("cancel");
  static PyObject* const set_result = PyUnicode_InternFromString("set_result");
  static PyObject* const set_exception = PyUnicode_InternFromString("set_exception");
  const py::object future = std::exchange(python_.future, py::object());
  if (!future) {
    return;
  }
  try {
    const auto is_done = py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(future.ptr(), done));
    if (is_done.ptr() == Py_True) {
      return;
    }
    py::object called;
    if (!is_done) {
    } else if (outcome == Outcome::cancelled) {
      called = py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(future.ptr(), cancel));
    } else {
      PyObject* method = set_result;
      py::object value;
      try {
        value = take_results();
      } catch (...) {
        method = set_exception;
        value = to_python(std::current_exception());
      }
      called = py::reinterpret_steal<py::object>(PyObject_CallMethodOneArg(future.ptr(), method, value.ptr()));
    }
    if (!called) {
      PyErr_WriteUnraisable(future.ptr());
    }
  } catch (py::error_already_set& failure) {
    failure.discard_as_unraisable(future);
  } catch (const std::exception& failure) {
    PyErr_SetString(PyExc_RuntimeError, failure.what());
    PyErr_WriteUnraisable(future.ptr());
  }
}

}  // namespace ortmulti::bindings
