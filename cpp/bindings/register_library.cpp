#include <pybind11/stl.h>

#include <chrono>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/gil.hpp"
#include "bindings/registrations.hpp"
#include "bindings/text.hpp"
#include "core/base/cpu_affinity.hpp"
#include "core/base/timeline.hpp"
#include "core/create/creation.hpp"
#include "core/create/preload.hpp"
#include "core/cuda/startup.hpp"
#include "core/memory/device_memory.hpp"
#include "core/ort/library.hpp"
#include "core/ort/session.hpp"
#include "core/ort/thread_group.hpp"
#include "core/policy/numbers.hpp"

namespace ortmulti::bindings {
namespace {

// Returns the name, value, unit, default, meaning and evidence of each number.
std::vector<std::tuple<std::string, double, std::string, double, std::string, std::string>> all_numbers() {
  std::vector<std::tuple<std::string, double, std::string, double, std::string, std::string>> all;
  for (const AnyNumber* one = AnyNumber::first(); one != nullptr; one = one->next()) {
    all.emplace_back(one->name(), one->value(), one->unit(), one->by_default(), one->meaning(), one->evidence());
  }
  return all;
}

py::tuple take_log() {
  // Who holds the queue's lock may wait for the GIL.
  const LogQueue::Taken taken = without_gil([] { return onnxruntime_log().take(); });
  py::list list;
  for (const LogRecord& record : taken.items) {
    // A message may quote bytes that are no UTF-8.
    const auto text = [](const std::string& utf8) { return decode(utf8, "replace"); };
    list.append(py::make_tuple(record.severity, text(record.category), text(record.logger), text(record.location),
                               text(record.message), record.time_ns, record.thread));
  }
  return py::make_tuple(list, taken.dropped, taken.closed);
}

void shut_down() {
  const ReleaseGil nogil;
  OnnxRuntime::join();
  join_cancelled_creations();
  end_preloads();
  device_memory::end();
  CudaStartup::instance().join();
  close_all_sessions();
}

}  // namespace

void register_library(py::module_& module) {
  module.def(
      "open_library", [](const Path& path, const Path& cuda_provider) { OnnxRuntime::open(path, cuda_provider); },
      py::arg("path"), py::arg("cuda_provider") = "", Nogil());
  module.def(
      "begin_opening_library",
      [](const Path& path, const Path& cuda_provider) { OnnxRuntime::begin_opening(path, cuda_provider); },
      py::arg("path"), py::arg("cuda_provider"), Nogil());
  module.def("finish_opening_library", &OnnxRuntime::join, Nogil());
  module.def("is_library_open", &OnnxRuntime::is_open);
  module.def("start_environment", [] { OnnxRuntime::get().env(); }, Nogil());
  module.def("has_environment", [] { return OnnxRuntime::is_open() && OnnxRuntime::get().has_env(); });
  module.def("set_arenas", &OnnxRuntime::set_arenas, py::arg("arenas"), Nogil());
  module.def("has_arena", &OnnxRuntime::has_arena, py::arg("device"), Nogil());
  module.def("set_log_severity", &OnnxRuntime::set_log_severity, py::arg("severity"), Nogil());
  module.def("set_telemetry", &OnnxRuntime::set_telemetry, py::arg("enabled"), Nogil());
  module.def("build_info", [] { return OnnxRuntime::get().build_info(); });
  module.def("onnxruntime_version", [] { return OnnxRuntime::get().version(); });
  module.def("onnxruntime_path", [] { return to_str(OnnxRuntime::get().path()); });
  module.def("cuda_plugin", [] { return to_str(OnnxRuntime::get().cuda_plugin()); });
  module.def("available_providers", [] { return OnnxRuntime::get().available_providers(); });
  module.def("usable_cores", &usable_cores);
  module.def("numbers", &all_numbers);
  module.def(
      "wait_for_log", [](int timeout_ms) { onnxruntime_log().wait(std::chrono::milliseconds(timeout_ms)); },
      py::arg("timeout_ms"), Nogil());
  module.def("take_log", &take_log);
  module.def("close_log", [] { onnxruntime_log().close(); }, Nogil());
  module.def("shut_down", &shut_down);
  py::class_<Timeline, std::shared_ptr<Timeline>>(module, "Timeline")
      .def(py::init<>())
      .def(
          "extend",
          [](Timeline& timeline, const Timeline& other) {
            for (Span& span : other.spans()) {
              timeline.add(std::move(span));
            }
          },
          py::arg("other"), Nogil())
      .def(
          "add",
          [](Timeline& timeline, const std::string& name, std::int64_t start_ns, std::int64_t end_ns,
             const std::string& device) { timeline.add(name, start_ns, end_ns, device); },
          py::arg("name"), py::arg("start_ns"), py::arg("end_ns"), py::arg("device"), Nogil())
      .def("spans", [](const Timeline& timeline) {
        py::list list;
        const std::vector<Span> spans = without_gil([&] { return timeline.spans(); });
        for (const Span& span : spans) {
          list.append(py::make_tuple(span.name, span.start_ns, span.end_ns, span.thread, span.device, span.request));
        }
        return list;
      });
  // Plain values: ortmulti.Threads checks them.
  py::class_<ThreadSettings>(module, "ThreadSettings")
      .def(py::init<std::string, std::optional<int>, bool, std::vector<int>>(), py::arg("name_prefix"),
           py::arg("numa_node"), py::arg("near_device"), py::arg("cpus"))
      .def_readonly("name_prefix", &ThreadSettings::name_prefix)
      .def_readonly("numa_node", &ThreadSettings::numa_node)
      .def_readonly("near_device", &ThreadSettings::near_device)
      .def_readonly("cpus", &ThreadSettings::cpus);
  py::class_<ThreadCounts>(module, "ThreadCounts")
      .def_readonly("name_prefix", &ThreadCounts::name_prefix)
      .def_readonly("owner", &ThreadCounts::owner)
      .def_readonly("cpus", &ThreadCounts::cpus)
      .def_readonly("created", &ThreadCounts::created)
      .def_readonly("joined", &ThreadCounts::joined);
  module.def("thread_counts", &thread_counts, Nogil());
  module.def(
      "thread_counts_of",
      [](const Session& session) {
        return session.threads() ? std::optional(session.threads()->counts()) : std::nullopt;
      },
      py::arg("session"), Nogil());
  module.def(
      "set_global_thread_pools",
      [](int intra_op_num_threads, int inter_op_num_threads, std::optional<bool> allow_spinning,
         std::string intra_op_affinity, bool denormal_as_zero, std::optional<ThreadSettings> threads) {
        OnnxRuntime::set_global_thread_pools({intra_op_num_threads, inter_op_num_threads, allow_spinning,
                                              std::move(intra_op_affinity), denormal_as_zero, std::move(threads)});
      },
      py::arg("intra_op_num_threads"), py::arg("inter_op_num_threads"), py::arg("allow_spinning"),
      py::arg("intra_op_affinity"), py::arg("denormal_as_zero"), py::arg("threads"), Nogil());
}

}  // namespace ortmulti::bindings
