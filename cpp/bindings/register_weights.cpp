#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/gil.hpp"
#include "bindings/registrations.hpp"
#include "bindings/signals.hpp"
#include "bindings/text.hpp"
#include "core/base/error.hpp"
#include "core/base/hash.hpp"
#include "core/base/stoppable_task.hpp"
#include "core/onnx/optimized_model.hpp"
#include "core/onnx/rewrite.hpp"
#include "core/onnx/weight_list.hpp"

namespace py = pybind11;

namespace ortmulti::bindings {
namespace {

using FileTuple = std::tuple<py::str, std::uint64_t, std::uint64_t, std::int64_t>;
using WeightTuple = std::tuple<py::str, int, std::vector<std::int64_t>, std::size_t, std::uint64_t, std::uint64_t>;
using RelocationTuple = std::tuple<std::size_t, py::str, std::uint64_t, std::uint64_t>;
using LeftOutTuple = std::tuple<py::str, py::str>;

WeightList make_list(const std::vector<FileTuple>& files, const std::vector<WeightTuple>& weights,
                     const std::vector<LeftOutTuple>& left_out) {
  WeightList list;
  for (const auto& [path, size, inode, mtime_ns] : files) {
    list.files.push_back({from_str(path), size, inode, mtime_ns});
  }
  for (const auto& [name, data_type, shape, file, offset, length] : weights) {
    if (file >= list.files.size()) {
      throw py::value_error("a weight names file " + std::to_string(file) + " of " + std::to_string(files.size()));
    }
    const std::string number = std::to_string(list.weights.size());
    list.weights.push_back({from_str(name), data_type, shape, file, offset, length});
    if (const std::string problem = tensor_problem(list.weights.back().name, data_type, shape, length);
        !problem.empty()) {
      throw py::value_error("weight " + number + " cannot be shared: " + problem);
    }
    if (const std::uint64_t size = list.files[file].size; offset > size || length > size - offset) {
      throw py::value_error("weight " + number + " lies outside of its file");
    }
  }
  for (const auto& [name, reason] : left_out) {
    list.left_out.push_back({from_str(name), from_str(reason)});
  }
  return list;
}

py::tuple to_tuple(const FileIdentity& file) {
  return py::make_tuple(to_str(file.path), file.size, file.inode, file.mtime_ns);
}

py::list to_list(const std::vector<FileIdentity>& files) {
  py::list result;
  for (const FileIdentity& file : files) {
    result.append(to_tuple(file));
  }
  return result;
}

py::list weights_of(const WeightList& list) {
  py::list result;
  for (const Weight& weight : list.weights) {
    result.append(
        py::make_tuple(to_str(weight.name), weight.data_type, weight.shape, weight.file, weight.offset, weight.length));
  }
  return result;
}

py::list left_out_of(const WeightList& list) {
  py::list result;
  for (const LeftOut& left_out : list.left_out) {
    result.append(py::make_tuple(to_str(left_out.name), to_str(left_out.reason)));
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

py::array read_listed(const FileTuple& listed, std::uint64_t offset, std::uint64_t size) {
  const auto& [path, file_size, inode, mtime_ns] = listed;
  const FileIdentity file{from_str(path), file_size, inode, mtime_ns};
  if (offset > file.size || size > file.size - offset) {
    throw Error(ErrorKind::weights, "'" + file.path + "' has " + std::to_string(file.size) + " bytes, and " +
                                        std::to_string(size) + " from " + std::to_string(offset) +
                                        " are needed; check the model's external data");
  }
  py::array_t<std::uint8_t> bytes(static_cast<py::ssize_t>(size));
  std::uint8_t* const target = bytes.mutable_data();
  {
    const ReleaseGil nogil;
    const std::unique_ptr<const InputFile> open = open_listed(file);
    open->read(target, size, offset);
    check_open(*open, file);
  }
  return bytes;
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
  py::class_<WeightList>(module, "WeightList")
      .def(py::init(&make_list), py::arg("files") = py::list(), py::arg("weights") = py::list(),
           py::arg("left_out") = py::list())
      .def_property_readonly("files", [](const WeightList& list) { return to_list(list.files); })
      .def_property_readonly("weights", &weights_of)
      .def_property_readonly("left_out", &left_out_of);
  module.attr("MIN_SHARED_BYTES") = min_shared_bytes;
  module.def(
      "index_model_file",
      [](const FileTuple& model) {
        const auto& [path, size, inode, mtime_ns] = model;
        const FileIdentity file{from_str(path), size, inode, mtime_ns};
        const ReleaseGil nogil;
        return index_model_file(file);
      },
      py::arg("model"));
  module.def(
      "shareable_weights",
      [](const py::str& model, std::uint64_t min_bytes) {
        const std::string path = from_path(model);
        const ReleaseGil nogil;
        return shareable_weights(path, min_bytes);
      },
      py::arg("model"), py::arg("min_bytes") = min_shared_bytes);
  module.def(
      "identify_file",
      [](const py::str& path) {
        const std::string text = from_path(path);
        FileIdentity file;
        {
          const ReleaseGil nogil;
          file = identify_file(text);
        }
        return to_tuple(file);
      },
      py::arg("path"));
  module.def(
      "external_files",
      [](const ModelIndex& index, const py::str& folder, const py::str& model) {
        const std::string folder_path = from_path(folder);
        const std::string model_path = from_path(model);
        std::vector<FileIdentity> files;
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
  module.def("read_listed", &read_listed, py::arg("file"), py::arg("offset"), py::arg("size"));
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
              relocate_initializers(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), relocations);
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
