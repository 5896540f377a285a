#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/errors.hpp"
#include "bindings/gil.hpp"
#include "bindings/python_source.hpp"
#include "bindings/python_value.hpp"
#include "bindings/registrations.hpp"
#include "bindings/signals.hpp"
#include "bindings/text.hpp"
#include "core/base/error.hpp"
#include "core/create/creation.hpp"
#include "core/weights/plan.hpp"
#include "core/weights/prefetch.hpp"

namespace ortmulti::bindings {
namespace {

using ProviderArgument = std::pair<std::string, std::map<std::string, std::string>>;
using OnDevices = std::map<std::string, std::pair<Path, std::map<std::string, std::string>>>;

// `made_of`: the file that bytes were made of.
ModelSource to_model(const py::object& model, const Path& made_of) {
  if (PyUnicode_Check(model.ptr()) != 0) {
    return {from_path(model)};
  }
  const auto bytes = keep_buffer(model);
  return {made_of, {bytes, static_cast<const unsigned char*>(bytes->buf)}, static_cast<std::size_t>(bytes->len)};
}

Serialize to_serialize(const std::string& name) {
  constexpr std::array names = {"none", "device", "all", "automatic"};  // in the order of the values
  const auto* const found = std::ranges::find(names, name);
  if (found == names.end()) {
    throw Error(ErrorKind::invalid_argument, "serialize is 'none', 'device', 'all' or 'automatic', not '" + name + "'");
  }
  return static_cast<Serialize>(found - names.begin());
}

// `beside`: a session whose shared weights on its GPU are used. If it has none, all are read.
SharedWeights make_weights(const WeightList& list, const std::shared_ptr<Session>& beside,
                           const std::shared_ptr<Prefetch>& prefetch, bool fill, bool share, int reader_threads,
                           std::uint64_t chunk_bytes, int buffers_per_thread) {
  const ReleaseGil nogil;  // nobody changes the list
  const LoaderOptions loader{reader_threads, chunk_bytes, buffers_per_thread};
  const auto there = beside ? beside->weights(beside->lock_for_use()) : nullptr;
  auto base = freed_without_gil(std::dynamic_pointer_cast<const CudaWeightStore>(there));
  return {std::make_shared<WeightPlan>(plan_weights(list, std::move(base))), prefetch, loader, fill, share};
}

CreationRequest make_request(const py::object& model, const Path& made_of,
                             const std::vector<std::vector<ProviderArgument>>& sessions, const SessionOptions& options,
                             const std::string& serialize, const std::optional<SharedWeights>& weights,
                             const Path& save_optimized, const OnDevices& on_devices, bool one_session_each,
                             bool preload, bool keep_going, const std::shared_ptr<Timeline>& timeline,
                             const std::shared_ptr<CudaStartup::Hold>& hold) {
  std::vector<std::vector<Provider>> providers;
  for (const auto& session : sessions) {
    auto& target = providers.emplace_back();
    for (const auto& [name, values] : session) {
      target.push_back({name, values, {}});
    }
  }
  std::map<std::string, CreationRequest::OnDevice> others;
  for (const auto& [device, values] : on_devices) {
    others[device] = {values.first, values.second};
  }
  const ModelSource source = to_model(model, made_of);
  const Serialize waits = to_serialize(serialize);
  return {source, providers,        options, waits,      weights,  save_optimized,
          others, one_session_each, preload, keep_going, timeline, hold};
}

// What happened to the sessions of a creation: one of them is ready or failed, or time has passed.
struct CreationEvent {
  std::optional<std::size_t> index;  // of the session
  std::string device;
  std::shared_ptr<Session> session;  // null where it failed, or was closed since another one failed
  std::exception_ptr error;
  std::uint64_t loaded_bytes = 0;  // as in Creation::Progress
  std::uint64_t total_bytes = 0;
};

// An iterator over the events of a creation, which begins with the first one. The creating threads touch no Python
// object.
class CreationEvents : NonCopyable {
 public:
  explicit CreationEvents(CreationRequest request) : request_(std::move(request)) {}
  ~CreationEvents() { cancel(); }

  CreationEvent next() {
    const ReleaseGil nogil;
    if (auto request = std::exchange(request_, std::nullopt)) {
      creation_ = freed_without_gil(Creation::start(OnnxRuntime::get(), *std::move(request)));
    }
    if (!creation_) {
      throw py::stop_iteration();
    }
    if (next_ == now_.ready.size() + now_.failed.size()) {
      if (now_.finished) {
        const auto ended = std::exchange(creation_, nullptr);
        ended->take();  // all were given away, or this throws the first error
        throw py::stop_iteration();
      }
      now_ = creation_->wait(signal_interval);
      next_ = 0;
    }
    CreationEvent event;
    event.loaded_bytes = now_.loaded_bytes;
    event.total_bytes = now_.total_bytes;
    if (next_ < now_.ready.size()) {
      event.index = now_.ready[next_++];
      if (auto session = creation_->take(*event.index)) {
        event.session = freed_without_gil(std::move(session));
      }
    } else if (next_ < now_.ready.size() + now_.failed.size()) {
      const Creation::Failure& failure = now_.failed[next_++ - now_.ready.size()];
      event.index = failure.index;
      event.error = failure.error;
    }
    if (event.index) {
      event.device = to_string(creation_->device(*event.index));
    }
    return event;
  }

  // Nothing of it is left in this object, which the frames of an exception may keep.
  void cancel() {
    request_.reset();
    if (const auto creation = std::exchange(creation_, nullptr)) {
      without_gil([&] { creation->cancel(); });
    }
  }

 private:
  std::optional<CreationRequest> request_;  // until it begins
  std::shared_ptr<Creation> creation_;      // until it has ended
  Creation::Progress now_;
  std::size_t next_ = 0;  // in `now_`: those that are ready, then those that failed
};

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
             return freed_without_gil(std::make_shared<Prefetch>(std::move(parts)));
           }),
           py::arg("ranges"));
  py::class_<SharedWeights>(module, "SharedWeights")
      .def(py::init(&make_weights), py::arg("list"), py::kw_only(), py::arg("beside") = py::none(),
           py::arg("prefetch") = py::none(), py::arg("fill") = true, py::arg("share") = false,
           py::arg("reader_threads") = 0, py::arg("chunk_bytes") = 0, py::arg("buffers_per_thread") = 0);
  py::class_<CreationRequest>(module, "CreationRequest")
      .def(py::init(&make_request), py::kw_only(), py::arg("model"), py::arg("made_of") = "", py::arg("sessions"),
           py::arg("options"), py::arg("serialize") = "automatic", py::arg("weights") = py::none(),
           py::arg("save_optimized") = "", py::arg("on_devices") = OnDevices{}, py::arg("one_session_each") = false,
           py::arg("preload") = false, py::arg("keep_going") = false, py::arg("timeline") = py::none(),
           py::arg("hold") = py::none());
  py::class_<CreationEvent>(module, "CreationEvent")
      .def_readonly("index", &CreationEvent::index)
      .def_readonly("device", &CreationEvent::device)
      .def_readonly("session", &CreationEvent::session)
      .def_property_readonly("error",
                             [](const CreationEvent& event) -> py::object {
                               return event.error ? to_python(event.error) : py::object(py::none());
                             })
      .def_readonly("loaded_bytes", &CreationEvent::loaded_bytes)
      .def_readonly("total_bytes", &CreationEvent::total_bytes);
  py::class_<CreationEvents>(module, "CreationEvents")
      .def(py::init<CreationRequest>(), py::arg("request"))
      .def("__iter__", [](const py::object& self) { return self; })
      .def("__next__", &CreationEvents::next)
      .def("cancel", &CreationEvents::cancel);
}

}  // namespace ortmulti::bindings
