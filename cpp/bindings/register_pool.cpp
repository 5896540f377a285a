#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/answers.hpp"
#include "bindings/call.hpp"
#include "bindings/errors.hpp"
#include "bindings/pool_request.hpp"
#include "bindings/pool_stats.hpp"
#include "bindings/python_pool.hpp"
#include "bindings/registrations.hpp"
#include "bindings/signals.hpp"
#include "core/base/timeline.hpp"
#include "core/pool/batch.hpp"
#include "core/pool/runners.hpp"

namespace ortmulti::bindings {
namespace {

// Whether the request has arrived; a wait for one that was cancelled ends before that.
bool wait_for_arrival(const PoolRequest& request, std::optional<double> timeout) {
  const std::shared_ptr<Arrival>& arrival = request.arrival();
  if (!arrival->arrived()) {
    const auto give_up = after(timeout.value_or(std::numeric_limits<double>::max()));
    wait_until([&] {
      const auto next = std::min(give_up, Request::Clock::now() + signal_interval);
      return arrival->wait(next) || next == give_up;
    });
  }
  return arrival->arrived();
}

// The calls of each request. pybind11 would look up each argument's name and type, for half a microsecond or more.
template <typename Call>
PyObject* call_directly(PyObject* self, Py_ssize_t count, Py_ssize_t expected, const Call& call) {
  try {
    if (count != expected) {
      throw py::type_error("a wrong number of arguments: " + std::to_string(count));
    }
    // Python has checked that it is one, and no other class is made of it.
    auto& held = *reinterpret_cast<py::detail::instance*>(self);  // NOLINT(cppcoreguidelines-pro-type-reinterpret-cast)
    return call(*held.get_value_and_holder().value_ptr<PythonPool>()).release().ptr();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (...) {
    const py::object error = to_python(std::current_exception());
    PyErr_SetObject(py::type::of(error).ptr(), error.ptr());
  }
  return nullptr;
}

py::object borrowed(PyObject* object) { return py::reinterpret_borrow<py::object>(object); }

// output_names, input_feed, call
PyObject* run_directly(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  return call_directly(self, count, 3, [&](PythonPool& pool) {
    return pool.run(borrowed(arguments[0]), borrowed(arguments[1]), Call(arguments[2]));
  });
}

// output_names, input_feed, wait, limited, call
PyObject* submit_directly(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  return call_directly(self, count, 5, [&](PythonPool& pool) {
    const auto wait = py::handle(arguments[2]).cast<std::optional<double>>();
    return py::cast(
        pool.submit(borrowed(arguments[0]), borrowed(arguments[1]), wait, arguments[3] == Py_True, Call(arguments[4])));
  });
}

// output_names, input_feed, limited, call
PyObject* submit_async_directly(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  return call_directly(self, count, 4, [&](PythonPool& pool) {
    return pool.submit_async(borrowed(arguments[0]), borrowed(arguments[1]), arguments[2] == Py_True,
                             Call(arguments[3]));
  });
}

using Fast = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);

// The definition lives as long as the class.
template <Fast Function>
void define(py::handle owner, const char* name) {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): as Python's documentation has it
  static PyMethodDef definition{name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Function)),
                                METH_FASTCALL, nullptr};
  const auto method =
      py::reinterpret_steal<py::object>(PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(owner.ptr()), &definition));
  if (!method) {
    throw py::error_already_set();
  }
  py::setattr(owner, name, method);
}

}  // namespace

void register_pool(py::module_& module) {
  py::class_<PoolRequest, std::shared_ptr<PoolRequest>>(module, "PoolRequest")
      .def("arrived", [](const PoolRequest& self) { return self.arrival()->arrived(); })
      .def("wait", &wait_for_arrival, py::arg("timeout"))
      .def("take", &PoolRequest::take)
      .def("follow", &PoolRequest::follow, py::arg("future"), py::arg("complete"))
      .def("run_seconds", [](const PoolRequest& self) {
        return std::chrono::duration<double>(self.ended - self.started - self.waiting_for_session).count();
      });
  py::class_<LoopWatch>(module, "LoopWatch")
      .def(py::init<>())
      .def("fileno", &LoopWatch::descriptor)
      .def("deliver", &LoopWatch::deliver)
      .def("remember", &LoopWatch::remember, py::arg("loop"));
  module.attr("at_first_in_flight") = at_first_in_flight;
  module.attr("most_in_flight") = most_in_flight;
  module.def("set_running_loop", &set_running_loop, py::arg("get_running_loop"));
  module.attr("own_compute_stream") = Session::own_compute_stream;
  py::class_<Batching>(module, "Batching")
      .def(py::init([](std::size_t max_size, double max_delay, std::size_t axis, std::vector<std::size_t> sizes) {
             return Batching{max_size, to_duration(max_delay), axis, std::move(sizes)};
           }),
           py::arg("max_size"), py::arg("max_delay"), py::arg("axis"), py::arg("sizes"));
  py::class_<PythonPool> pool(module, "Pool");
  pool.def(py::init<std::optional<std::size_t>, Batching>(), py::arg("max_waiting") = py::none(),
           py::arg("batching") = Batching())
      .def("add", &PythonPool::add, py::arg("session"), py::arg("in_flight") = 1, py::arg("max_graphs") = 0,
           py::arg("feeds") = py::list(), py::arg("warm_up_runs") = 0,
           py::arg("timeline") = std::shared_ptr<Timeline>(), py::arg("run_options") = py::none())
      .def("add_runners", &PythonPool::add_runners, py::arg("device"), py::arg("runners"), py::arg("check"))
      .def("check_inputs", &PythonPool::check_inputs, py::arg("inputs"))
      .def("set_ready", &PythonPool::set_ready, py::arg("session"), py::arg("ready"))
      .def("give_up", &PythonPool::give_up, py::arg("session"), py::arg("reason"))
      .def("expect", &PythonPool::expect, py::arg("device"), py::arg("sessions"))
      .def("not_coming", &PythonPool::not_coming, py::arg("device"), py::arg("sessions"), py::arg("exception"))
      .def("set_opening", &PythonPool::set_opening, py::arg("opening"))
      .def("fail", &PythonPool::fail, py::arg("exception"))
      .def("remove", &PythonPool::remove, py::arg("device"))
      .def("sleep", &PythonPool::sleep, py::arg("device"), py::arg("pinned"), py::arg("auto_wake"), py::arg("timeout"),
           py::arg("timeline"))
      .def("sleep_sessions", &PythonPool::sleep_sessions, py::arg("device"), py::arg("make"), py::arg("auto_wake"),
           py::arg("timeout"))
      .def("enter", &PythonPool::enter, py::arg("repository"), py::arg("name"), py::arg("device"), py::arg("model"),
           py::arg("pinned"), py::arg("timeline"), py::arg("close"), py::arg("reserved"))
      .def("wake", &PythonPool::wake, py::arg("device"))
      .def("wait_until_awake", &PythonPool::wait_until_awake, py::arg("device"), py::arg("timeout"))
      .def("continue_from", &PythonPool::continue_from, py::arg("before"))
      .def("warm_up", &PythonPool::warm_up, py::arg("feeds"), py::arg("runs"), py::arg("timeline"))
      .def("cancel", &PythonPool::cancel, py::arg("request"))
      .def(
          "cancel_async",
          [](PythonPool& self, const py::capsule& request) {
            return self.cancel_async(*request.get_pointer<AsyncRequest>());
          },
          py::arg("request"))
      .def("stats", [](PythonPool& self) { return to_dict(self.stats()); })
      .def("states", [](PythonPool& self) { return to_states(self.stats()); })
      .def("close", &PythonPool::close, py::arg("cancel_waiting"), py::arg("patience") = py::none())
      .def("closed", &PythonPool::closed);
  define<run_directly>(pool, "run");
  define<submit_directly>(pool, "submit");
  define<submit_async_directly>(pool, "submit_async");
}

}  // namespace ortmulti::bindings
