#include <pybind11/stl.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/gil.hpp"
#include "bindings/python_source.hpp"
#include "bindings/registrations.hpp"
#include "bindings/signals.hpp"
#include "bindings/text.hpp"
#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/base/hash.hpp"
#include "core/base/stoppable_task.hpp"
#include "core/onnx/optimized_model.hpp"
#include "core/onnx/rewrite.hpp"
#include "core/onnx/weight_list.hpp"

namespace py = pybind11;

namespace ortmulti::bindings {
namespace {

using RelocationTuple = std::tuple<std::size_t, py::str, std::uint64_t, std::uint64_t>;

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

py::list to_list(const std::vector<std::shared_ptr<const Source>>& sources) {
  py::list result;
  for (const auto& source : sources) {
    result.append(to_python(source));
  }
  return result;
}

// Has another thread do the work; calls `poll` and handles signals meanwhile. What these raise ends the work.
template <typename Result>
Result interruptible(std::function<Result(const std::atomic<bool>&)> work, const py::object& poll = py::none()) {
  const auto task = freed_without_gil(std::make_shared<StoppableTask<Result>>(std::move(work)));
  for (;;) {
    {
      const ReleaseGil nogil;
      if (task->wait(signal_interval)) {
        return task->take();
      }
    }
    if (!poll.is_none()) {
      poll();
    }
    check_signals();
  }
}

// An opener for Python's open(). It has no Python frame in which Ctrl-C could lose the descriptor.
template <int (*Open)(const std::string&, int) noexcept>
int open_for_python(const py::object& path, int flags) {
  const std::string text = from_path(py::str(path));
  int descriptor = -1;
  {
    const ReleaseGil nogil;
    descriptor = Open(text, flags);
  }
  if (descriptor < 0) {
    PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path.ptr());
    throw py::error_already_set();
  }
  return descriptor;
}

}  // namespace

void register_weights(py::module_& module) {
  py::class_<Weight>(module, "Weight")
      .def(py::init([](const py::str& name, int data_type, const std::vector<std::int64_t>& shape, std::size_t source,
                       std::uint64_t offset, std::uint64_t length) {
             return Weight{from_str(name), data_type, shape, source, offset, length};
           }),
           py::arg("name"), py::arg("data_type"), py::arg("shape"), py::arg("source"), py::arg("offset"),
           py::arg("length"))
      .def_property_readonly("name", [](const Weight& weight) { return to_str(weight.name); })
      .def_readonly("data_type", &Weight::data_type)
      .def_readonly("shape", &Weight::shape)
      .def_readonly("source", &Weight::source)
      .def_readonly("offset", &Weight::offset)
      .def_readonly("length", &Weight::length);
  py::class_<LeftOut>(module, "LeftOut")
      .def(py::init(
               [](const py::str& name, const py::str& reason) { return LeftOut{from_str(name), from_str(reason)}; }),
           py::arg("name"), py::arg("reason"))
      .def_property_readonly("name", [](const LeftOut& left_out) { return to_str(left_out.name); })
      .def_property_readonly("reason", [](const LeftOut& left_out) { return to_str(left_out.reason); });
  py::class_<WeightList>(module, "WeightList")
      .def(py::init(&make_list), py::arg("sources") = py::list(), py::arg("weights") = py::list(),
           py::arg("left_out") = py::list())
      .def_property_readonly("sources", [](const WeightList& list) { return to_list(list.sources); })
      .def_property_readonly("weights", [](const WeightList& list) { return list.weights; })
      .def_property_readonly("left_out", [](const WeightList& list) { return list.left_out; });
  module.attr("MIN_SHARED_BYTES") = min_shared_bytes;
  module.def(
      "shareable_weights",
      [](const py::str& model, std::uint64_t min_bytes) {
        const std::string path = from_path(model);
        const ReleaseGil nogil;
        return shareable_weights(path, min_bytes);
      },
      py::arg("model"), py::arg("min_bytes") = min_shared_bytes);
  module.def(
      "external_files",
      [](const ModelIndex& index, const py::str& folder, const py::str& model) {
        const std::string folder_path = from_path(folder);
        const std::string model_path = from_path(model);
        std::vector<std::shared_ptr<const Source>> files;
        {
          const ReleaseGil nogil;  // nobody changes the index
          ExternalFiles external(folder_path, model_path);
          for (const std::string& location : external_locations(index)) {
            files.push_back(external.find(location));
          }
        }
        return to_list(files);
      },
      py::arg("index"), py::arg("folder"), py::arg("model"));
  module.def(
      "relocate_initializers",
      [](const py::bytes& model, const std::vector<RelocationTuple>& moved) {
        std::vector<Relocation> relocations;
        relocations.reserve(moved.size());
        for (const auto& [initializer, location, offset, length] : moved) {
          relocations.push_back({initializer, from_str(location), offset, length});
        }
        const std::string_view bytes = model;
        std::string result;
        {
          const ReleaseGil nogil;  // the argument holds the bytes, which do not change
          result =
              relocate_initializers({reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()}, relocations);
        }
        return py::bytes(result);
      },
      py::arg("model"), py::arg("relocations"));
  module.def(
      "put_weights_outside",
      [](const py::str& model) {
        const std::string path = from_path(model);
        OutsideModel outside;
        {
          const ReleaseGil nogil;
          outside = put_weights_outside(path);
        }
        return py::make_tuple(py::bytes(outside.bytes), to_str(outside.folder), std::move(outside.weights));
      },
      py::arg("model"));
  module.def(
      "changed_weights",
      [](const py::str& saved, const py::str& original, const py::str& data_folder, const WeightList& given) {
        const std::array<std::string, 3> paths = {from_path(saved), from_path(original), from_path(data_folder)};
        std::vector<std::string> changed;
        {
          const ReleaseGil nogil;  // nobody changes the list
          changed = changed_weights(paths[0], paths[1], paths[2], given);
        }
        py::list names;
        for (const std::string& name : changed) {
          names.append(to_str(name));
        }
        return names;
      },
      py::arg("saved"), py::arg("original"), py::arg("data_folder"), py::arg("given"));
  module.def(
      "split_optimized_model",
      [](const py::str& saved, const py::str& original, const py::str& data_folder, const py::str& folder,
         const py::iterable& unshared, const py::object& poll) {
        const std::array<std::string, 4> paths = {from_path(saved), from_path(original), from_path(data_folder),
                                                  from_path(folder)};
        std::set<std::string> names;
        for (const py::handle name : unshared) {
          names.insert(from_str(name.cast<py::str>()));
        }
        auto split = interruptible<SplitModel>(
            [&](const std::atomic<bool>& stop) {
              return split_optimized_model(paths[0], paths[1], paths[2], paths[3], names, &stop);
            },
            poll);
        return std::pair(std::move(split.weights), split.own_bytes);
      },
      py::arg("saved"), py::arg("original"), py::arg("data_folder"), py::arg("folder"),
      py::arg("unshared") = py::tuple(), py::arg("poll") = py::none());
  module.def("open_nonblocking", &open_for_python<open_nonblocking>, py::arg("path"), py::arg("flags"));
  module.def("open_nofollow", &open_for_python<open_nofollow>, py::arg("path"), py::arg("flags"));
  module.def(
      "file_checksum",
      [](const py::str& path, const py::object& poll) {
        const std::string text = from_path(path);
        return interruptible<std::uint64_t>([&](const std::atomic<bool>& stop) { return file_checksum(text, &stop); },
                                            poll);
      },
      py::arg("path"), py::arg("poll") = py::none());
}

}  // namespace ortmulti::bindings
