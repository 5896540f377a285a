#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <tuple>

#include "bindings/errors.hpp"
#include "bindings/gil.hpp"
#include "bindings/python_session.hpp"
#include "bindings/python_source.hpp"
#include "bindings/python_value.hpp"
#include "bindings/registrations.hpp"
#include "bindings/signals.hpp"
#include "bindings/text.hpp"
#include "core/base/error.hpp"
#include "core/create/creation.hpp"
#include "core/weights/plan.hpp"
#include "core/weights/prefetch.hpp"

namespace py = pybind11;

namespace ortmulti::bindings {
namespace {

using ProviderArgument = std::pair<std::string, std::map<std::string, std::string>>;
using OnDevices = std::map<std::string, std::pair<py::str, std::map<std::string, std::string>>>;

ModelSource from_buffer(const py::object& object) {
  const auto bytes = keep_buffer(object);
  return ModelSource::from_bytes(bytes->buf, static_cast<std::size_t>(bytes->len), bytes);
}

Serialize to_serialize(const std::string& name) {
  if (name == "none") {
    return Serialize::none;
  }
  if (name == "device") {
    return Serialize::device;
  }
  if (name == "all") {
    return Serialize::all;
  }
  if (name == "automatic") {
    return Serialize::automatic;
  }
  throw Error(ErrorKind::invalid_argument, "serialize is 'none', 'device', 'all' or 'automatic', not '" + name + "'");
}

LoaderOptions make_loader_options(int reader_threads, std::uint64_t chunk_bytes, int buffers_per_thread) {
  if (reader_threads < 0 || buffers_per_thread < 0) {
    throw Error(ErrorKind::invalid_argument, "the numbers of reader threads and of their buffers are 0 or more");
  }
  return {reader_threads, chunk_bytes, buffers_per_thread};
}

SharedWeights make_weights(const WeightList& list, const std::shared_ptr<Prefetch>& prefetch,
                           const LoaderOptions& loader, bool fill) {
  const ReleaseGil nogil;  // nobody changes the list
  return {std::make_shared<WeightPlan>(plan_weights(list)), prefetch, loader, fill};
}

CreationRequest make_request(const py::object& model, const py::str& made_of,
                             const std::vector<std::vector<ProviderArgument>>& sessions, const SessionOptions& options,
                             const std::string& serialize, const std::optional<SharedWeights>& weights,
                             const py::str& save_optimized, const OnDevices& on_devices, bool one_session_each,
                             bool preload, bool keep_going, const std::shared_ptr<Timeline>& timeline,
                             const std::shared_ptr<CudaStartup::Hold>& hold) {
  CreationRequest request;
  request.model =
      PyUnicode_Check(model.ptr()) != 0 ? ModelSource::from_path(from_path(model.cast<py::str>())) : from_buffer(model);
  if (request.model.in_memory) {
    request.model.path = from_path(made_of);
  }
  for (const auto& providers : sessions) {
    auto& target = request.sessions.emplace_back();
    for (const auto& [name, values] : providers) {
      target.push_back({name, values, {}});
    }
  }
  request.options = options;
  request.serialize = to_serialize(serialize);
  request.weights = weights;
  request.save_optimized = from_path(save_optimized);
  for (const auto& [device, values] : on_devices) {
    request.on_devices[device] = {from_path(values.first), values.second};
  }
  request.one_session_each = one_session_each;
  request.preload = preload;
  request.keep_going = keep_going;
  request.timeline = timeline;
  request.hold = hold;
  return request;
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

// The methods of the Python object that follows a creation. None: it has no such method. It is no part of the request:
// the garbage collector cannot see through a class of C++ here.
class Listener {
 public:
  explicit Listener(const py::object& object)
      : ready_(method(object, "ready")),
        failed_(method(object, "failed")),
        progress_(method(object, "progress")),
        bytes_loaded_(method(object, "bytes_loaded")),
        poll_(method(object, "poll")) {}

  void report(Creation& creation, const std::vector<std::size_t>& ready, const std::vector<Creation::Failure>& failures,
              const Creation::Loaded& loaded) {
    if (loaded.bytes != reported_ && !bytes_loaded_.is_none()) {
      reported_ = loaded.bytes;
      bytes_loaded_(loaded.bytes, loaded.total);
    }
    for (const std::size_t index : ready) {
      ++done_;
      if (!ready_.is_none()) {
        std::shared_ptr<Session> session;
        {
          const ReleaseGil nogil;
          session = creation.take(index);
        }
        if (session) {
          ready_(index, PythonSession{std::move(session)});
        }
      }
      if (!progress_.is_none()) {
        progress_(done_, creation.size(), to_string(creation.device(index)));
      }
    }
    for (const auto& [index, error] : failures) {
      if (!failed_.is_none()) {
        failed_(index, to_python(error));
      }
    }
    if (!poll_.is_none()) {
      poll_();
    }
  }

 private:
  static py::object method(const py::object& object, const char* name) { return py::getattr(object, name, py::none()); }

  py::object ready_;
  py::object failed_;
  py::object progress_;
  py::object bytes_loaded_;
  py::object poll_;
  std::size_t done_ = 0;
  std::uint64_t reported_ = 0;
};

py::tuple create_sessions(const CreationRequest& request, const py::object& listening) {
  Listener listener(listening);
  OnnxRuntime& runtime = OnnxRuntime::get();
  std::shared_ptr<Creation> creation;
  {
    const ReleaseGil nogil;
    creation = freed_without_gil(Creation::start(runtime, request));
  }
  CancelUnlessTaken guard(*creation);
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
    listener.report(*creation, ready, failures, loaded);
    check_signals();
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

void register_creation(py::module_& module) {
  py::class_<Prefetch, std::shared_ptr<Prefetch>>(module, "Prefetch")
      .def(py::init([](const std::vector<std::tuple<py::object, std::uint64_t, std::uint64_t>>& ranges) {
             std::vector<Prefetch::Range> parts;
             parts.reserve(ranges.size());
             for (const auto& [source, offset, length] : ranges) {
               parts.push_back({to_source(source), offset, length});
             }
             // Its thread may be within a block when the last reference goes.
             return std::shared_ptr<Prefetch>(new Prefetch(std::move(parts)), [](Prefetch* held) {
               without_gil([&] { delete held; });  // NOLINT(cppcoreguidelines-owning-memory)
             });
           }),
           py::arg("ranges"));
  py::class_<LoaderOptions>(module, "LoaderOptions")
      .def(py::init(&make_loader_options), py::kw_only(), py::arg("reader_threads") = 0, py::arg("chunk_bytes") = 0,
           py::arg("buffers_per_thread") = 0);
  py::class_<SharedWeights>(module, "SharedWeights")
      .def(py::init(&make_weights), py::arg("list"), py::kw_only(), py::arg("prefetch") = py::none(),
           py::arg("loader") = LoaderOptions{}, py::arg("fill") = true);
  py::class_<CreationRequest>(module, "CreationRequest")
      .def(py::init(&make_request), py::kw_only(), py::arg("model"), py::arg("made_of") = "", py::arg("sessions"),
           py::arg("options"), py::arg("serialize") = "automatic", py::arg("weights") = py::none(),
           py::arg("save_optimized") = "", py::arg("on_devices") = OnDevices{}, py::arg("one_session_each") = false,
           py::arg("preload") = false, py::arg("keep_going") = false, py::arg("timeline") = py::none(),
           py::arg("hold") = py::none());
  module.def("create_sessions", &create_sessions, py::arg("request"), py::arg("listener") = py::none());
}

}  // namespace ortmulti::bindings
