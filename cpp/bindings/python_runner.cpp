#include "bindings/python_runner.hpp"

#include <atomic>
#include <utility>

#include "bindings/errors.hpp"
#include "bindings/pool_request.hpp"
#include "bindings/python_value.hpp"
#include "bindings/tensors.hpp"
#include "core/base/async_runs.hpp"
#include "core/base/error.hpp"

namespace ortmulti::bindings {
namespace {

// A run that is to end.
struct Ending {
  std::shared_ptr<PythonRunner> runner;
  std::uint64_t number;
  Ending* next = nullptr;
};

std::atomic<Ending*>& endings() {
  static std::atomic<Ending*> first{nullptr};  // a stack; no lock, since whoever takes it has the GIL
  return first;
}

}  // namespace

PythonRunner::PythonRunner(const py::object& runner, Device device, py::object session)
    : python_(new Python{runner.attr("run"), runner.attr("terminate"), std::move(session)}),
      device_(std::move(device)) {}

void PythonRunner::run(Request& request) {
  static std::atomic<std::uint64_t> last{0};
  const std::uint64_t number = ++last;
  request.run_number.store(number);
  if (request.ending.load()) {  // else terminate() sees the number
    throw Error(ErrorKind::cancelled, "the request was cancelled");
  }
  const py::gil_scoped_acquire gil;
  auto* const asked = dynamic_cast<PoolRequest*>(&request);
  try {
    if (asked == nullptr) {
      run_joint(request, number);
    } else {
      asked->set_results(python_->run(request.endable ? number : 0, asked->names(), asked->feed()));
    }
  } catch (const py::error_already_set& failure) {
    const py::object& exception = failure.value();
    if (asked != nullptr && !failure.matches(PyExc_Exception)) {  // such as KeyboardInterrupt
      asked->set_exception(exception);
    }
    const py::object begun = py::getattr(exception, "begun", py::none());
    if (!begun.is_none()) {
      throw SessionLost(from_python(exception).what(), begun.cast<bool>());
    }
    throw from_python(exception);
  }
}

void PythonRunner::run_joint(Request& joint, std::uint64_t number) {
  py::list names;
  for (const char* name : joint.output_names) {
    names.append(py::str(name));
  }
  const py::dict feed;
  for (std::size_t i = 0; i < joint.inputs.size(); ++i) {
    feed[py::str(joint.inputs.names()[i])] = array_over(joint.inputs.values()[i], py::none());
  }
  joint.outputs.clear();
  joint.output_owners.clear();
  for (const py::handle result : py::list(python_->run(number, names, feed))) {
    try {
      joint.outputs.push_back(value_over(result));
    } catch (const Error&) {
      joint.outputs.emplace_back(nullptr);  // which cannot be split
    }
    joint.output_owners.push_back(keep(py::reinterpret_borrow<py::object>(result)));
  }
}

void PythonRunner::terminate(Request& request) noexcept {  // NOLINT(bugprone-exception-escape)
  const std::uint64_t number = request.run_number.load();
  if (number == 0) {
    return;
  }
  auto* const ending =
      new Ending{shared_from_this(), number, endings().load()};  // NOLINT(*-owning-memory,*-unhandled-exception-at-new)
  while (!endings().compare_exchange_weak(ending->next, ending)) {
  }
  completions().push([] { end_runs(); });
}

void end_runs() {
  if (endings().load() == nullptr) {
    return;
  }
  for (Ending* ending = endings().exchange(nullptr); ending != nullptr;) {
    try {
      ending->runner->python_->terminate(ending->number);
    } catch (py::error_already_set& failure) {
      failure.discard_as_unraisable("PythonRunner.terminate");
    }
    delete std::exchange(ending, ending->next);  // NOLINT(cppcoreguidelines-owning-memory)
  }
}

}  // namespace ortmulti::bindings
