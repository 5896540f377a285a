#include <pybind11/stl.h>

#include <array>
#include <memory>
#include <optional>

#include "bindings/gil.hpp"
#include "bindings/registrations.hpp"
#include "bindings/text.hpp"
#include "core/base/device.hpp"
#include "core/create/preload.hpp"
#include "core/cuda/gpu_memory.hpp"
#include "core/cuda/startup.hpp"
#include "core/ort/library.hpp"
#include "core/ort/options.hpp"
#include "core/ort/plugins.hpp"

namespace ortmulti::bindings {

using namespace py::literals;  // NOLINT(google-build-using-namespace): "name"_a

void register_device(py::module_& module) {
  py::class_<CudaDeviceInfo>(module, "CudaDevice")
      .def_readonly("index", &CudaDeviceInfo::index)
      .def_readonly("name", &CudaDeviceInfo::name)
      .def_readonly("uuid", &CudaDeviceInfo::uuid)
      .def_readonly("pci_bus_id", &CudaDeviceInfo::pci_bus_id)
      .def_readonly("total_memory", &CudaDeviceInfo::total_memory)
      .def_property_readonly("compute_capability", [](const CudaDeviceInfo& info) {
        return py::make_tuple(info.compute_major, info.compute_minor);
      });

  module.def(
      "parse_device",
      [](const Device& device) {
        return py::make_tuple(device.is_plugin() ? device.name : device.is_cuda() ? "cuda" : "cpu", device.index);
      },
      py::arg("text"));
  // Each of these may start CUDA or wait for it: seconds, in which other Python threads run.
  module.def("cuda_device_count", [] { return CudaStartup::instance().device_count(); }, Nogil());
  module.def(
      "cuda_devices",
      [] {
        CudaStartup& startup = CudaStartup::instance();
        const int count = startup.device_count();
        std::vector<CudaDeviceInfo> devices;
        devices.reserve(static_cast<std::size_t>(count));
        for (int i = 0; i < count; ++i) {
          devices.push_back(startup.describe(i));
        }
        return devices;
      },
      Nogil());
  module.def(
      "cuda_peer_access", [](int device, int peer) { return CudaStartup::instance().can_access_peer(device, peer); },
      py::arg("device"), py::arg("peer"), Nogil());
  module.def(
      "cuda_memory",
      [](int device) {
        const CudaStartup::Memory memory = CudaStartup::instance().memory(device);
        return std::pair(memory.free, memory.total);
      },
      py::arg("device"), Nogil());
  module.def(
      "gpu_memory",
      [](int device) {
        const GpuMemory memory = without_gil([&] { return gpu_memory(CudaStartup::instance(), device); });
        constexpr std::array names = {"weights", "arenas", "graphs", "buffers"};  // in the order of the uses
        py::dict facts("of_process"_a = memory.of_process, "used"_a = memory.used, "total"_a = memory.total);
        for (std::size_t i = 0; i < names.size(); ++i) {
          facts[names.at(i)] = memory.uses.at(i);
        }
        return facts;
      },
      py::arg("device"));
  module.def("cuda_driver_version", [] { return CudaStartup::instance().driver_version(); }, Nogil());
  module.def("cuda_driver_problem", [] { return CudaStartup::instance().driver_problem(); }, Nogil());
  module.def(
      "begin_opening_cuda_libraries",
      [](std::vector<std::string> linked, std::vector<std::string> opened_later) {
        CudaStartup::instance().begin_opening(std::move(linked), std::move(opened_later), [] {
          // What the first session would otherwise do: it opens the provider's library, which logs.
          if (OnnxRuntime::is_open() && OnnxRuntime::get().has_env()) {
            to_onnxruntime(SessionOptions{}, {with_devices(OnnxRuntime::get(), {"CUDAExecutionProvider", {}})});
          }
        });
      },
      py::arg("linked"), py::arg("opened_later"), Nogil());
  module.def(
      "prewarm",
      [](const std::optional<std::vector<int>>& devices) { CudaStartup::instance().begin_contexts(devices); },
      py::arg("devices"), Nogil());
  module.def(
      "begin_preload",
      [](const std::optional<std::vector<int>>& devices, const ModelIndex& index) {
        begin_preload(OnnxRuntime::get(), devices, index);
      },
      py::arg("devices"), py::arg("index"), Nogil());
  py::class_<CudaStartup::Hold, std::shared_ptr<CudaStartup::Hold>>(module, "ContextHold")
      .def(py::init([](int device) {
             const ReleaseGil nogil;
             return freed_without_gil(std::make_shared<CudaStartup::Hold>(CudaStartup::instance(), device));
           }),
           py::arg("device"))
      .def("release", &CudaStartup::Hold::release, Nogil());
  module.def(
      "cuda_has_context", [](int device) { return CudaStartup::instance().has_context(device); }, py::arg("device"),
      Nogil());
}

}  // namespace ortmulti::bindings
