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
  const auto* const found = std::find(names.begin(), names.end(), name);
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

// Calls a method of the Python object that follows a creation, if it has the method.
template <typename... Arguments>
void notify(const py::object& listener, const char* method, Arguments&&... arguments) {
  if (const py::object call = py::getattr(listener, method, py::none()); !call.is_none()) {
    call(std::forward<Arguments>(arguments)...);
  }
}

// The listener is no part of the request: the garbage collector cannot see through a class of C++ here.
py::tuple create_sessions(const CreationRequest& request, const py::object& listener) {
  OnnxRuntime& runtime = OnnxRuntime::get();
  auto creation = without_gil([&] { return freed_without_gil(Creation::start(runtime, request)); });
  const auto cancel = [](Creation* given_up) { without_gil([&] { given_up->cancel(); }); };
  std::unique_ptr<Creation, decltype(cancel)> guard(creation.get(), cancel);  // until its sessions are taken
  const py::object on_ready = py::getattr(listener, "ready", py::none());
  std::size_t done = 0;
  std::uint64_t reported = 0;
  for (bool finished = false; !finished;) {
    // The creating threads touch no Python object.
    const Creation::Progress now = without_gil([&] { return creation->wait(signal_interval); });
    finished = now.finished;
    if (std::exchange(reported, now.loaded_bytes) != now.loaded_bytes) {
      notify(listener, "bytes_loaded", now.loaded_bytes, now.total_bytes);
    }
    for (const std::size_t index : now.ready) {
      if (!on_ready.is_none()) {
        auto session = without_gil([&] { return creation->take(index); });
        if (session) {
          on_ready(index, freed_without_gil(std::move(session)));
        }
      }
      notify(listener, "progress", ++done, creation->size(), to_string(creation->device(index)));
    }
    for (const auto& [index, error] : now.failed) {
      notify(listener, "failed", index, to_python(error));
    }
    notify(listener, "poll");
    check_signals();
  }

  static_cast<void>(guard.release());  // NOLINT(bugprone-unused-return-value)
  auto created = without_gil([&] { return creation->take(); });
  py::list result;
  for (auto& session : created) {
    if (session) {
      result.append(freed_without_gil(std::move(session)));
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
  module.def("create_sessions", &create_sessions, py::arg("request"), py::arg("listener") = py::none());
}

}  // namespace ortmulti::bindings
