#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <tuple>

#include "bindings/errors.hpp"
#include "bindings/gil.hpp"
#include "bindings/python_session.hpp"
#include "bindings/registrations.hpp"
#include "bindings/text.hpp"
#include "core/base/error.hpp"
#include "core/create/session_factory.hpp"
#include "core/weights/plan.hpp"
#include "core/weights/prefetch.hpp"

namespace py = pybind11;

namespace ortmulti::bindings {
namespace {

using ProviderArgument = std::pair<std::string, std::map<std::string, std::string>>;

// How long a signal may wait until Python sees it.
constexpr std::chrono::milliseconds signal_interval{50};

// Holds a Python buffer; freed from whichever thread is the last to need the model.
ModelSource from_buffer(const py::object& object) {
  auto view = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), view.get(), PyBUF_SIMPLE) != 0) {
    throw py::error_already_set();
  }
  const std::shared_ptr<Py_buffer> owner(view.release(), [](Py_buffer* held) {
    if (Py_IsInitialized() != 0) {
      const py::gil_scoped_acquire gil;
      PyBuffer_Release(held);
    }
    delete held;  // NOLINT(cppcoreguidelines-owning-memory)
  });
  return ModelSource::from_bytes(owner->buf, static_cast<std::size_t>(owner->len), owner);
}

// Gives the creation up unless its sessions were taken.
class CancelUnlessTaken {
 public:
  explicit CancelUnlessTaken(Creation& creation) : creation_(&creation) {}
  ~CancelUnlessTaken() {  // NOLINT(bugprone-exception-escape): out of memory for a list of threads ends the process
    if (creation_ != nullptr) {
      const ReleaseGil nogil;
      creation_->cancel();
    }
  }
  CancelUnlessTaken(const CancelUnlessTaken&) = delete;
  CancelUnlessTaken& operator=(const CancelUnlessTaken&) = delete;
  void taken() noexcept { creation_ = nullptr; }

 private:
  Creation* creation_;
};

// (reader threads, bytes of a chunk, buffers of a thread); 0: by the machine
using LoaderArgument = std::tuple<int, std::uint64_t, int>;

// Who is given each session that is ready, (index, session); who is told of each that failed, (index, exception), while
// the others go on; what is called in short intervals, and may raise to end it all. None: nobody.
using ListenerArgument = std::tuple<py::object, py::object, py::object>;

py::tuple create_sessions(const py::object& model, const std::vector<std::vector<ProviderArgument>>& sessions,
                          const SessionOptions& options, const std::string& serialize, const py::object& progress,
                          const std::optional<WeightList>& weights, bool fill,
                          const std::shared_ptr<ReadAhead>& read_ahead, const LoaderArgument& loader,
                          const py::object& load_progress, bool one_session_on_cpu,
                          const std::shared_ptr<Timeline>& timeline, const ListenerArgument& listener,
                          const std::shared_ptr<CudaStartup::Hold>& hold) {
  OnnxRuntime& runtime = OnnxRuntime::get();
  CreationRequest request;
  request.model =
      PyUnicode_Check(model.ptr()) != 0 ? ModelSource::from_path(from_path(model.cast<py::str>())) : from_buffer(model);
  request.options = options;
  if (serialize == "none") {
    request.serialize = Serialize::none;
  } else if (serialize == "device") {
    request.serialize = Serialize::device;
  } else if (serialize == "all") {
    request.serialize = Serialize::all;
  }
  for (const auto& providers : sessions) {
    auto& target = request.sessions.emplace_back();
    for (const auto& [name, values] : providers) {
      target.push_back({name, values});
    }
  }
  request.one_session_on_cpu = one_session_on_cpu;
  request.timeline = timeline;
  request.hold = hold;
  request.keep_going = !std::get<1>(listener).is_none();
  if (weights) {
    SharedWeights& shared = request.weights.emplace();
    shared.plan = std::make_shared<WeightPlan>(plan_weights(*weights));
    shared.read_ahead = read_ahead;
    shared.loader = {std::get<0>(loader), std::get<1>(loader), std::get<2>(loader)};
    shared.fill = fill;
  }

  std::shared_ptr<Creation> creation;
  {
    const ReleaseGil nogil;
    creation = freed_without_gil(Creation::start(runtime, std::move(request)));
  }
  CancelUnlessTaken guard(*creation);
  const auto& [take, failed, poll] = listener;
  std::size_t done = 0;
  std::uint64_t reported = 0;
  for (bool finished = false; !finished;) {
    std::vector<std::size_t> ready;
    std::vector<Creation::Failure> failures;
    Creation::Loaded loaded;
    {
      const ReleaseGil nogil;  // the creating threads touch no Python object
      ready = creation->wait(signal_interval);
      finished = creation->finished();
      if (finished) {  // what became ready between the two calls
        const auto rest = creation->wait(std::chrono::milliseconds(0));
        ready.insert(ready.end(), rest.begin(), rest.end());
      }
      failures = creation->failures();
      loaded = creation->loaded();
    }
    if (const auto [bytes, total] = loaded; bytes != reported && !load_progress.is_none()) {
      reported = bytes;
      load_progress(bytes, total);
    }
    for (const std::size_t index : ready) {
      ++done;
      if (!take.is_none()) {
        std::shared_ptr<Session> session;
        {
          const ReleaseGil nogil;
          session = creation->take(index);
        }
        if (session) {
          take(index, PythonSession{std::move(session)});
        }
      }
      if (!progress.is_none()) {
        progress(done, creation->size(), to_string(creation->device(index)));
      }
    }
    for (const auto& [index, error] : failures) {
      if (!failed.is_none()) {
        failed(index, to_python(error));
      }
    }
    if (!poll.is_none()) {
      poll();
    }
    if (PyErr_CheckSignals() != 0) {
      throw py::error_already_set();
    }
  }

  std::vector<std::shared_ptr<Session>> created;
  guard.taken();
  {
    const ReleaseGil nogil;
    created = creation->take();
  }
  py::list result;
  for (auto& session : created) {
    if (session) {
      result.append(PythonSession{std::move(session)});
    }
  }
  return py::make_tuple(result, creation->timeline());
}

}  // namespace

void register_factory(py::module_& module) {
  module.def("create_sessions", &create_sessions, py::arg("model"), py::arg("sessions"), py::arg("options"),
             py::arg("serialize"), py::arg("progress") = py::none(), py::arg("weights") = py::none(),
             py::arg("fill") = true, py::arg("read_ahead") = py::none(), py::arg("loader") = LoaderArgument{},
             py::arg("load_progress") = py::none(), py::arg("one_session_on_cpu") = false,
             py::arg("timeline") = py::none(),
             py::arg("listener") = std::make_tuple(py::none(), py::none(), py::none()), py::arg("hold") = py::none());
  py::class_<ReadAhead, std::shared_ptr<ReadAhead>>(module, "ReadAhead")
      .def(py::init([](const std::vector<std::tuple<py::str, std::uint64_t, std::uint64_t>>& ranges) {
             std::vector<ReadAhead::Range> files;
             files.reserve(ranges.size());
             for (const auto& [path, offset, length] : ranges) {
               files.push_back({from_path(path), offset, length});
             }
             // Its thread may be within a block when the last reference goes.
             return std::shared_ptr<ReadAhead>(new ReadAhead(std::move(files)), [](ReadAhead* held) {
               without_gil([&] { delete held; });  // NOLINT(cppcoreguidelines-owning-memory)
             });
           }),
           py::arg("ranges"));
  module.def("concurrent_creation_stressed", &concurrent_creation_stressed, py::arg("onnxruntime_version"));
}

}  // namespace ortmulti::bindings
