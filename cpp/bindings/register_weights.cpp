#include <pybind11/stl.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stop_token>
#include <utility>
#include <vector>

#include "bindings/gil.hpp"
#include "bindings/python_source.hpp"
#include "bindings/registrations.hpp"
#include "bindings/signals.hpp"
#include "bindings/text.hpp"
#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/base/stoppable_task.hpp"
#include "core/cuda/startup.hpp"
#include "core/onnx/optimized_model.hpp"
#include "core/onnx/rewrite.hpp"
#include "core/onnx/weight_list.hpp"
#include "core/weights/loader.hpp"
#include "core/weights/plan.hpp"
#include "core/weights/weight_load.hpp"

namespace ortmulti::bindings {
namespace {

WeightList make_list(const std::vector<py::object>& sources, std::vector<Weight> weights,
                     std::vector<LeftOut> left_out) {
  WeightList list{{}, std::move(weights), std::move(left_out)};
  for (const py::object& source : sources) {
    list.sources.push_back(to_source(source));
  }
  for (std::size_t i = 0; i < list.weights.size(); ++i) {
    const Weight& weight = list.weights[i];
    const auto refuse = [&](const std::string& problem) {
      throw Error(ErrorKind::invalid_argument, "weight " + std::to_string(i) + problem);
    };
    if (weight.source >= list.sources.size()) {
      refuse(" names source " + std::to_string(weight.source) + " of " + std::to_string(list.sources.size()));
    }
    if (const std::string problem = tensor_problem(weight.name, weight.data_type, weight.shape, weight.length);
        !problem.empty()) {
      refuse(" cannot be shared: " + problem);
    }
    if (!list.sources[weight.source]->has(weight.length, weight.offset)) {
      refuse(" lies outside of its source");
    }
  }
  return list;
}

// Has another thread do the work; calls `poll` and handles signals meanwhile. What these raise ends the work;
// `given_up` is called then, once the work is to stop.
template <typename Result>
Result interruptible(
    std::function<Result(const std::stop_token&)> work, const std::function<void()>& poll,
    const std::function<void()>& given_up = [] {}) {
  const auto task = freed_without_gil(std::make_shared<StoppableTask<Result>>(std::move(work)));
  for (;;) {
    {
      const ReleaseGil nogil;
      if (task->wait(signal_interval)) {
        return task->take();
      }
    }
    try {
      poll();
      check_signals();
    } catch (...) {
      task->stop();
      given_up();
      throw;
    }
  }
}

std::function<void()> poll_of(const py::object& call) {
  return [&call] {
    if (!call.is_none()) {
      call();
    }
  };
}

// An opener for Python's open(). It has no Python frame in which Ctrl-C could lose the descriptor.
template <int (*Open)(const std::string&, int) noexcept>
int open_for_python(const py::object& path, int flags) {
  const std::string text = from_path(py::str(path));
  const int descriptor = without_gil([&] { return Open(text, flags); });
  if (descriptor < 0) {
    PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path.ptr());
    throw py::error_already_set();
  }
  return descriptor;
}

// Not the store itself: pybind11 would free it with the GIL.
struct DeviceWeights {
  std::shared_ptr<const CudaWeightStore> store;

  int device() const { return store->device().index; }
  std::uint64_t address(std::size_t index) const { return store->address(index); }
};

std::vector<DeviceWeights> load_weights(const SharedWeights& weights, const std::vector<int>& devices) {
  const auto load = without_gil(
      [&] { return freed_without_gil(std::make_shared<WeightLoad>(CudaStartup::instance(), weights, devices)); });
  wait_until([&](auto /*until*/) { return load->wait(signal_interval); });
  const ReleaseGil nogil;
  std::vector<DeviceWeights> result;
  for (auto& store : load->take()) {
    result.push_back({freed_without_gil(std::move(store))});
  }
  return result;
}

}  // namespace

void register_weights(py::module_& module) {
  py::class_<Weight>(module, "Weight")
      .def(py::init<Text, int, std::vector<std::int64_t>, std::size_t, std::uint64_t, std::uint64_t>(), py::arg("name"),
           py::arg("data_type"), py::arg("shape"), py::arg("source"), py::arg("offset"), py::arg("length"))
      .def_property_readonly("name", [](const Weight& weight) { return to_str(weight.name); })
      .def_readonly("data_type", &Weight::data_type)
      .def_readonly("shape", &Weight::shape)
      .def_readonly("source", &Weight::source)
      .def_readonly("offset", &Weight::offset)
      .def_readonly("length", &Weight::length);
  py::class_<LeftOut>(module, "LeftOut")
      .def(py::init<Text, Text>(), py::arg("name"), py::arg("reason"))
      .def_property_readonly("name", [](const LeftOut& left_out) { return to_str(left_out.name); })
      .def_property_readonly("reason", [](const LeftOut& left_out) { return to_str(left_out.reason); });
  py::class_<WeightList>(module, "WeightList")
      .def(py::init(&make_list), py::arg("sources") = py::list(), py::arg("weights") = py::list(),
           py::arg("left_out") = py::list())
      .def("hold_files", &WeightList::hold_files, Nogil())
      .def(
          "read",
          [](const WeightList& list, const py::object& progress) {
            std::atomic<std::uint64_t> read{0};
            return interruptible<WeightList>(
                [&](const std::stop_token& stop) { return read_to_memory(list, stop, &read); },
                [&] {
                  if (!progress.is_none()) {
                    progress(read.load());
                  }
                },
                [&] { interrupt(list); });
          },
          py::arg("progress") = py::none())
      .def_property_readonly("sources", [](const WeightList& list) { return list.sources; })
      .def_property_readonly("weights", [](const WeightList& list) { return list.weights; })
      .def_property_readonly("left_out", [](const WeightList& list) { return list.left_out; });
  module.attr("MIN_SHARED_BYTES") = min_shared_bytes;
  // Without the GIL: nobody changes a list or an index.
  module.def(
      "shareable_weights",
      [](const Path& model, std::uint64_t min_bytes) { return shareable_weights(model, min_bytes); }, py::arg("model"),
      py::arg("min_bytes") = min_shared_bytes, Nogil());
  module.def(
      "external_files",
      [](const ModelIndex& index, const Path& folder, const Path& model) {
        std::vector<std::shared_ptr<const Source>> files;
        ExternalFiles external(folder, model);
        for (const std::string& location : external_locations(index)) {
          files.push_back(external.find(location));
        }
        return files;
      },
      py::arg("index"), py::arg("folder"), py::arg("model"), Nogil());
  module.def(
      "put_weights_outside",
      [](const Path& model) {
        OutsideModel outside = without_gil([&] { return put_weights_outside(model); });
        return py::make_tuple(py::bytes(outside.bytes), to_str(outside.folder), std::move(outside.weights));
      },
      py::arg("model"));
  module.def(
      "put_weights_at",
      [](const Source& model, const std::string& location, std::uint64_t min_bytes) {
        return py::bytes(without_gil([&] { return put_weights_at(model, location, min_bytes); }));
      },
      py::arg("model"), py::arg("location"), py::arg("min_bytes"));
  module.def(
      "changed_weights",
      [](const Path& saved, const Path& original, const Path& data_folder, const WeightList& given) {
        const auto names = changed_weights(saved, original, data_folder, given);
        return std::vector<Text>(names.begin(), names.end());
      },
      py::arg("saved"), py::arg("original"), py::arg("data_folder"), py::arg("given"), Nogil());
  module.def(
      "split_optimized_model",
      [](const Path& saved, const Path& original, const Path& data_folder, const Path& folder,
         const std::vector<Text>& unshared, const py::object& poll,
         const std::map<std::string, std::shared_ptr<Source>>& sources,
         const std::optional<std::vector<Text>>& inputs) {
        const std::set<std::string> names(unshared.begin(), unshared.end());
        std::optional<std::set<std::string>> of_model;
        if (inputs) {
          of_model.emplace(inputs->begin(), inputs->end());
        }
        const SourcesByLocation given(sources.begin(), sources.end());
        auto split = interruptible<SplitModel>(
            [&](const std::stop_token& stop) {
              return split_optimized_model(saved, original, data_folder, folder, names, stop, given, of_model);
            },
            poll_of(poll));
        return std::pair(std::move(split.weights), split.own_bytes);
      },
      py::arg("saved"), py::arg("original"), py::arg("data_folder"), py::arg("folder"),
      py::arg("unshared") = py::tuple(), py::arg("poll") = py::none(),
      py::arg("sources") = std::map<std::string, std::shared_ptr<Source>>(), py::arg("inputs") = py::none());
  module.def("open_nonblocking", &open_for_python<open_nonblocking>, py::arg("path"), py::arg("flags"));
  module.def("open_nofollow", &open_for_python<open_nofollow>, py::arg("path"), py::arg("flags"));
  module.def(
      "file_checksum",
      [](const Path& path, const py::object& poll) {
        return interruptible<std::uint64_t>([&](const std::stop_token& stop) { return file_checksum(path, stop); },
                                            poll_of(poll));
      },
      py::arg("path"), py::arg("poll") = py::none());
  // For tests: GPUs read their weights so, before they have a session.
  py::class_<DeviceWeights>(module, "DeviceWeights")
      .def_property_readonly("device", &DeviceWeights::device)
      .def("address", &DeviceWeights::address, py::arg("index"));
  module.def("load_weights", &load_weights, py::arg("weights"), py::arg("devices"));
  py::class_<Offered>(module, "OfferedWeights")
      .def_property_readonly("model", [](const Offered& offered) { return Text(offered.model); })
      .def_property_readonly("uuid", [](const Offered& offered) { return Text(offered.device); })
      .def_readonly("bytes", &Offered::bytes)
      .def_readonly("process", &Offered::process);
  module.def("offered_weights", [] { return without_gil(all_offers); });
}

}  // namespace ortmulti::bindings
