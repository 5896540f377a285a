#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/answers.hpp"
#include "bindings/pool_request.hpp"
#include "bindings/python_pool.hpp"
#include "bindings/registrations.hpp"
#include "bindings/signals.hpp"
#include "bindings/text.hpp"
#include "core/base/timeline.hpp"
#include "core/policy/numbers.hpp"
#include "core/pool/batching.hpp"
#include "core/pool/graph_proof.hpp"
#include "core/pool/runners.hpp"

namespace ortmulti::bindings {

using namespace py::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace {

// (bound, count) pairs.
py::tuple to_buckets(const auto& counts, const auto& bound) {
  py::tuple buckets(counts.size());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    buckets[i] = py::make_tuple(bound(i), counts[i]);
  }
  return buckets;
}

// The upper bounds of latencies' buckets, ascending.
using Bounds = std::vector<std::int64_t>;

py::object to_value(std::uint64_t count, const Bounds& /*bounds*/) { return py::int_(count); }

py::object to_value(const LatencyHistogram& histogram, const Bounds& bounds) {
  const auto seconds = [](std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; };
  const auto bound = [&bounds](std::size_t i) { return static_cast<double>(bounds[i]) / 1e9; };
  return py::dict("count"_a = histogram.count(), "sum"_a = seconds(histogram.sum_ns()),
                  "max"_a = seconds(histogram.max_ns()), "p50"_a = seconds(histogram.quantile_ns(0.5)),
                  "p95"_a = seconds(histogram.quantile_ns(0.95)), "p99"_a = seconds(histogram.quantile_ns(0.99)),
                  "p999"_a = seconds(histogram.quantile_ns(0.999)),
                  "buckets"_a = to_buckets(histogram.counts_up_to(bounds), bound));
}

py::object to_value(const SizeHistogram& histogram, const Bounds& /*bounds*/) {
  const auto bound = [](std::size_t i) { return std::size_t{1} << i; };
  return py::dict("count"_a = histogram.count(), "sum"_a = histogram.sum(),
                  "buckets"_a = to_buckets(histogram.counts_up_to_bounds(), bound));
}

// (state, why it failed or broke) of each device.
py::dict to_states(const PoolStats& stats) {
  py::dict states;
  for (const DeviceStats& device : stats.devices) {
    states[py::str(to_string(device.device))] = py::make_tuple(to_string(device.state), device.broken);
  }
  return states;
}

// What `ortmulti.PoolStats` is made from.
py::dict to_dict(const PoolStats& stats, const Bounds& bounds) {
  py::list devices;
  for (const DeviceStats& device : stats.devices) {
    py::dict entry(
        "device"_a = device.device, "state"_a = to_string(device.state), "sessions"_a = device.sessions,
        "busy"_a = device.busy, "waiting"_a = device.waiting, "broken"_a = device.broken,
        "suspended"_a = device.suspended, "asleep"_a = device.level == SleepLevel::awake ? "" : to_string(device.level),
        "why_padding"_a = device.why_padding, "why_rows"_a = device.why_rows, "in_flight"_a = device.in_flight,
        "why_in_flight"_a = device.why_in_flight, "graphs"_a = device.graphs.shapes,
        "graph_sessions"_a = device.graphs.sessions, "graph_bytes"_a = device.graphs.bytes,
        "why_no_graph"_a = device.graphs.why_not, "why_graph_sessions"_a = device.graphs.why_sessions);
    const auto arena = [&](auto part) -> py::object {
      return device.arena ? py::object(py::int_((*device.arena).*part)) : py::none();
    };
    entry["arena_bytes"] = arena(&Session::Arena::held);
    entry["arena_used_bytes"] = arena(&Session::Arena::used);
    entry["arena_peak_bytes"] = arena(&Session::Arena::most_used);
    DeviceStats::for_each_count([&](const char* name, auto count) { entry[name] = to_value(device.*count, bounds); });
    devices.append(std::move(entry));
  }
  py::dict all("devices"_a = devices, "waiting"_a = stats.waiting, "why_unbatched"_a = stats.why_unbatched,
               "why_unlike"_a = stats.why_unlike);
  PoolStats::for_each_count([&](const char* name, auto count) { all[name] = stats.*count; });
  return all;
}

// Whether the request has arrived; a wait for one that was cancelled ends before that.
bool wait_for_arrival(const PoolRequest& request, std::optional<double> timeout) {
  const std::shared_ptr<Arrival>& arrival = request.arrival();
  if (!arrival->arrived()) {
    wait_until([&](auto until) { return arrival->wait(until); }, timeout);
  }
  return arrival->arrived();
}

// What became of each: its outputs, its exception, or None where it was cancelled. Exceptions in the list stay there.
py::list take_all(const py::list& requests) {
  py::list taken(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    py::object outcome = requests[i];
    if (py::isinstance<PoolRequest>(outcome)) {
      auto& request = outcome.cast<PoolRequest&>();
      static_cast<void>(wait_for_arrival(request, std::nullopt));  // only who cancels it ends that wait early
      const py::tuple of = request.take();
      outcome = of[1].is_none() ? of[0] : of[1];
      if (of[2].cast<bool>()) {
        outcome = py::none();
      }
    }
    taken[i] = outcome;
  }
  return taken;
}

PoolStats stats_of(const PythonPool& pool) {
  const ReleaseGil nogil;
  return pool.get()->stats();
}

// A method of the core's pool, of whichever of its parts, called without the GIL.
template <typename Part, typename Result, typename... Arguments>
auto of_core(Result (Part::*method)(Arguments...)) {
  return [method](const PythonPool& self, Arguments... arguments) {
    const ReleaseGil nogil;
    return (self.get().get()->*method)(std::forward<Arguments>(arguments)...);
  };
}

}  // namespace

void register_pool(py::module_& module) {
  py::class_<PoolRequest, std::shared_ptr<PoolRequest>>(module, "PoolRequest")
      .def("arrived", [](const PoolRequest& self) { return self.arrival()->arrived(); })
      .def("wait", &wait_for_arrival, py::arg("timeout"))
      .def("take", &PoolRequest::take)
      .def("cancel", &PoolRequest::cancel)
      .def("follow", &PoolRequest::follow, py::arg("follower"), py::arg("complete"));
  py::class_<LoopWatch>(module, "LoopWatch")
      .def(py::init<>())
      .def("fileno", &LoopWatch::descriptor)
      .def("deliver", &LoopWatch::deliver)
      .def("remember", &LoopWatch::remember, py::arg("loop"));
  py::dict levels;  // without "awake"
  for (auto level = sleep_levels.begin() + 1; level != sleep_levels.end(); ++level) {
    levels[level->name] = level->frees_runners;
  }
  module.attr("sleep_levels") = levels;
  module.attr("at_first_in_flight") = *numbers::in_flight_first;
  module.attr("max_in_flight") = *numbers::in_flight_most;
  module.attr("max_in_flight_on_cpu") = max_in_flight_on_cpu();
  module.def("take_all", &take_all, py::arg("requests"));
  module.def("set_running_loop", &set_running_loop, py::arg("get_running_loop"));
  py::class_<ShapeGraphs, std::shared_ptr<ShapeGraphs>>(module, "ShapeGraphs")
      .def("wanted_shapes", &ShapeGraphs::wanted_shapes, Nogil())
      .def("cancelled", &ShapeGraphs::cancelled, Nogil())
      .def(
          "add",
          [](ShapeGraphs& graphs, const std::string& key, const std::vector<std::shared_ptr<Session>>& sessions,
             const std::function<std::string()>& why_not) {
            graphs.add(key, capture_graphs(graphs.wanted_sample(), sessions, why_not));
          },
          py::arg("key"), py::arg("sessions"), py::arg("why_not"), Nogil())
      .def("not_now", &ShapeGraphs::not_now, py::arg("key"), py::arg("reason"), Nogil())
      .def("not_made", &ShapeGraphs::not_made, py::arg("key"), py::arg("reason"), Nogil());
  py::class_<CpuSessions, std::shared_ptr<CpuSessions>>(module, "CpuSessions")
      .def("ended", &CpuSessions::ended, Nogil())
      .def("add", &CpuSessions::add, py::arg("session"), Nogil())
      .def("not_made", &CpuSessions::not_made, py::arg("reason"), Nogil());
  module.attr("own_compute_stream") = Session::own_compute_stream;
  module.attr("record_assignment") = Session::record_assignment;
  py::class_<Batching>(module, "Batching")
      .def(py::init([](std::size_t max_size, double max_delay, std::size_t axis, std::vector<std::size_t> sizes) {
             return Batching{max_size, to_duration(max_delay), axis, std::move(sizes)};
           }),
           py::arg("max_size"), py::arg("max_delay"), py::arg("axis"), py::arg("sizes"));
  py::class_<Padding::PaddedTensor>(module, "PaddedTensor")
      .def(py::init([](std::string name, std::vector<std::size_t> axes, const py::bytes& value) {
             const auto bytes = value.cast<std::string_view>();
             const auto* const begin = reinterpret_cast<const std::byte*>(bytes.data());
             return Padding::PaddedTensor{std::move(name), std::move(axes), {begin, begin + bytes.size()}};
           }),
           py::arg("name"), py::arg("axes"), py::arg("value"));
  py::class_<Padding>(module, "Padding")
      .def(py::init<>())
      .def_readwrite("axis", &Padding::axis)
      .def_readwrite("dimension", &Padding::dimension)
      .def_readwrite("inputs", &Padding::inputs)
      .def_readwrite("outputs", &Padding::outputs)
      .def_readwrite("at_front", &Padding::at_front)
      .def_readwrite("lengths", &Padding::lengths)
      .def_readwrite("multiple", &Padding::multiple)
      .def_readwrite("max_tokens", &Padding::max_tokens)
      .def_readwrite("max_waste", &Padding::max_waste)
      .def_readwrite("packed", &Padding::packed)
      .def(
          "make_mask",  // of an element type by its number, of which `one` has the element 1
          [](Padding& self, int type, const Padding::PaddedTensor& one) {
            self.mask = one.name;
            self.mask_type = static_cast<ONNXTensorElementDataType>(type);
            self.mask_one = one.value;
          },
          py::arg("type"), py::arg("one"));
  py::class_<PythonPool>(module, "Pool")
      .def(py::init<std::optional<std::size_t>, Batching, std::optional<double>, bool>(),
           py::arg("max_waiting") = py::none(), py::arg("batching") = Batching(), py::arg("trim_after") = py::none(),
           py::arg("reject_late") = false)
      .def("add", &PythonPool::add, py::arg("session"), py::arg("in_flight") = 1, py::arg("feeds") = py::list(),
           py::arg("warm_up_runs") = 0, py::arg("timeline") = std::shared_ptr<Timeline>(),
           py::arg("run_options") = py::none(), py::arg("graph_wanted") = py::none(),
           py::arg("graph_after") = ShapeGraphs::Rule().runs_before_capture,
           py::arg("max_graphs") = ShapeGraphs::Rule().max_shapes, py::arg("one_thread_wanted") = py::none())
      .def("run", &PythonPool::run, py::arg("output_names"), py::arg("input_feed"), py::arg("call"))
      .def("submit", &PythonPool::submit, py::arg("output_names"), py::arg("input_feed"), py::arg("wait"),
           py::arg("limited"), py::arg("call"))
      .def("submit_many", &PythonPool::submit_many, py::arg("output_names"), py::arg("feeds"), py::arg("call"),
           py::arg("requests"))
      .def("run_tokens", &PythonPool::run_tokens, py::arg("block"))
      .def("submit_tokens", &PythonPool::submit_tokens, py::arg("block"), py::arg("waits"), py::arg("limited"))
      .def("submit_async", &PythonPool::submit_async, py::arg("output_names"), py::arg("input_feed"),
           py::arg("limited"), py::arg("call"))
      .def("check_inputs", &PythonPool::check_inputs, py::arg("inputs"))
      .def("set_padding", &PythonPool::set_padding, py::arg("padding"))
      .def(
          "set_outputs",
          [](const PythonPool& self, std::string model, Joining::Apart apart, std::set<std::string> random, bool audits,
             bool unproven) {
            const ReleaseGil nogil;
            self.get()->set_outputs({std::move(model), std::move(apart), std::move(random), audits, unproven});
          },
          py::arg("model"), py::arg("apart"), py::arg("random"), py::arg("audits"), py::arg("unproven"))
      .def("set_apart_inputs", of_core(&Pool::set_apart_inputs), py::arg("inputs"))
      .def("expect", of_core(&Pool::expect), py::arg("device"), py::arg("sessions"))
      .def("not_coming", of_core(&Pool::not_coming), py::arg("device"), py::arg("sessions"), py::arg("exception"))
      .def("set_opening", of_core(&Pool::set_opening), py::arg("opening"))
      .def("fail", of_core(&Pool::fail), py::arg("exception"))
      .def(
          "remove",
          [](const PythonPool& self, const Device& device) {
            wait_until([&](auto until) { return self.get()->remove(device, until); });
          },
          py::arg("device"))
      .def("sleep", &PythonPool::sleep, py::arg("device"), py::arg("level"), py::arg("pinned"), py::arg("auto_wake"),
           py::arg("timeout"), py::arg("timeline"))
      .def("sleep_sessions", &PythonPool::sleep_sessions, py::arg("device"), py::arg("level"), py::arg("make"),
           py::arg("auto_wake"), py::arg("timeout"))
      .def("wake", of_core(&Pool::wake), py::arg("device"))
      .def("give_back", of_core(&Pool::give_back), py::arg("device"), py::arg("graphs"))
      .def(
          "wait_until_awake",
          [](const PythonPool& self, const Device& device, std::optional<double> timeout) {
            return wait_until([&](auto until) { return self.get()->wait_until_awake(device, until); }, timeout);
          },
          py::arg("device"), py::arg("timeout"))
      .def(
          "continue_from",
          [](const PythonPool& self, const PythonPool& before) { self.get()->continue_from(before.get()); },
          py::arg("before"), Nogil())
      .def("warm_up", &PythonPool::warm_up, py::arg("feeds"), py::arg("runs"), py::arg("timeline"))
      .def(
          "cancel_async",
          [](PythonPool& self, const py::capsule& request) {
            return self.cancel_async(*request.get_pointer<AsyncRequest>());
          },
          py::arg("request"))
      .def(
          "stats", [](const PythonPool& self, const Bounds& bounds) { return to_dict(stats_of(self), bounds); },
          py::arg("bounds_ns") = Bounds())
      .def("states", [](const PythonPool& self) { return to_states(stats_of(self)); })
      .def(
          "close",
          [](const PythonPool& self, bool cancel_waiting) {
            wait_until([&](auto /*until*/) { return self.get()->close(cancel_waiting, signal_interval); });
          },
          py::arg("cancel_waiting"))
      .def("closed", [](const PythonPool& self) { return self.get()->closed(); }, Nogil());
}

}  // namespace ortmulti::bindings
