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

void open_library(const py::str& path, const py::str& cuda_provider) {
  const std::string text = from_path(path);
  const std::string cuda = from_path(cuda_provider);
  const ReleaseGil nogil;
  OnnxRuntime::open(text, cuda);
}

py::tuple take_log() {
  std::vector<LogRecord> records;
  std::uint64_t dropped = 0;
  bool closed = false;
  {
    const ReleaseGil nogil;  // who holds the queue's lock may wait for the GIL
    LogQueue& log = onnxruntime_log();
    records = log.take(std::chrono::milliseconds(0), dropped);
    closed = log.closed();
  }
  py::list list;
  for (const LogRecord& record : records) {
    const auto text = [](const std::string& utf8) {  // a message may quote bytes that are no UTF-8
      return py::reinterpret_steal<py::object>(
          PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), "replace"));
    };
    list.append(py::make_tuple(record.severity, text(record.category), text(record.logger), text(record.location),
                               text(record.message), record.time_ns, record.thread));
  }
  return py::make_tuple(list, dropped, closed);
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
  module.def("open_library", &open_library, py::arg("path"), py::arg("cuda_provider") = "");
  module.def(
      "begin_opening_library",
      [](const py::str& path, const py::str& cuda_provider) {
        const std::string text = from_path(path);
        const std::string cuda = from_path(cuda_provider);
        const ReleaseGil nogil;
        OnnxRuntime::begin_opening(text, cuda);
      },
      py::arg("path"), py::arg("cuda_provider"));
  module.def("finish_opening_library", &OnnxRuntime::join, py::call_guard<ReleaseGil>());
  module.def("is_library_open", &OnnxRuntime::is_open);
  module.def("start_environment", [] { OnnxRuntime::get().env(); }, py::call_guard<ReleaseGil>());
  module.def("has_environment", [] { return OnnxRuntime::is_open() && OnnxRuntime::get().has_env(); });
  module.def("set_arenas", &OnnxRuntime::set_arenas, py::arg("arenas"), py::call_guard<ReleaseGil>());
  module.def(
      "has_arena", [](const std::string& device) { return OnnxRuntime::has_arena(parse_device(device)); },
      py::arg("device"), py::call_guard<ReleaseGil>());
  module.def("set_log_severity", &OnnxRuntime::set_log_severity, py::arg("severity"), py::call_guard<ReleaseGil>());
  module.def("set_telemetry", &OnnxRuntime::set_telemetry, py::arg("enabled"), py::call_guard<ReleaseGil>());
  module.def("build_info", [] { return OnnxRuntime::get().build_info(); });
  module.def("onnxruntime_version", [] { return OnnxRuntime::get().version(); });
  module.def("onnxruntime_path", [] { return to_str(OnnxRuntime::get().path()); });
  module.def("cuda_plugin", [] { return to_str(OnnxRuntime::get().cuda_plugin()); });
  module.def("available_providers", [] { return OnnxRuntime::get().available_providers(); });
  module.def("usable_cores", &usable_cores);
  module.def(
      "wait_for_log", [](int timeout_ms) { onnxruntime_log().wait(std::chrono::milliseconds(timeout_ms)); },
      py::arg("timeout_ms"), py::call_guard<ReleaseGil>());
  module.def("take_log", &take_log);
  module.def("close_log", [] { onnxruntime_log().close(); }, py::call_guard<ReleaseGil>());
  module.def("shut_down", &shut_down);
}

}  // namespace ortmulti::bindings
