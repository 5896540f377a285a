#include <pybind11/stl.h>

#include <chrono>
#include <string>

#include "bindings/gil.hpp"
#include "bindings/registrations.hpp"
#include "bindings/text.hpp"
#include "core/base/cpu_affinity.hpp"
#include "core/create/creation.hpp"
#include "core/create/preload.hpp"
#include "core/cuda/startup.hpp"
#include "core/ort/library.hpp"
#include "core/ort/session.hpp"

namespace py = pybind11;

namespace ortmulti::bindings {
namespace {

py::tuple take_log() {
  // Who holds the queue's lock may wait for the GIL.
  const LogQueue::Taken taken = without_gil([] { return onnxruntime_log().take(); });
  py::list list;
  for (const LogRecord& record : taken.records) {
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
  CudaStartup::instance().join();
  close_all_sessions();
}

}  // namespace

void register_library(py::module_& module) {
  using Nogil = py::call_guard<ReleaseGil>;
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
  module.def(
      "wait_for_log", [](int timeout_ms) { onnxruntime_log().wait(std::chrono::milliseconds(timeout_ms)); },
      py::arg("timeout_ms"), Nogil());
  module.def("take_log", &take_log);
  module.def("close_log", [] { onnxruntime_log().close(); }, Nogil());
  module.def("shut_down", &shut_down);
}

}  // namespace ortmulti::bindings
