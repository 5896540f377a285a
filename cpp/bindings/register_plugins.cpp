#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>

#include "bindings/gil.hpp"
#include "bindings/registrations.hpp"
#include "bindings/text.hpp"
#include "core/ort/library.hpp"
#include "core/ort/plugins.hpp"

namespace py = pybind11;

namespace ortmulti::bindings {
namespace {

// Under ONNX Runtime's numbers.
enum class HardwareType : std::uint8_t { cpu, gpu, npu };

struct PythonHardware {
  std::shared_ptr<const EpDevice> device;
};

}  // namespace

void register_plugins(py::module_& module) {
  py::enum_<HardwareType>(module, "OrtHardwareDeviceType")
      .value("CPU", HardwareType::cpu)
      .value("GPU", HardwareType::gpu)
      .value("NPU", HardwareType::npu);
  py::class_<PythonHardware>(module, "OrtHardwareDevice")
      .def_property_readonly(
          "type", [](const PythonHardware& self) { return static_cast<HardwareType>(self.device->hardware_type); })
      .def_property_readonly("vendor", [](const PythonHardware& self) { return to_str(self.device->hardware_vendor); })
      .def_property_readonly("vendor_id", [](const PythonHardware& self) { return self.device->hardware_vendor_id; })
      .def_property_readonly("device_id", [](const PythonHardware& self) { return self.device->hardware_device_id; })
      .def_property_readonly("metadata", [](const PythonHardware& self) { return self.device->hardware_metadata; });
  py::class_<EpDevice, std::shared_ptr<EpDevice>>(module, "OrtEpDevice")
      .def_property_readonly("ep_name", [](const EpDevice& self) { return to_str(self.provider); })
      .def_property_readonly("ep_vendor", [](const EpDevice& self) { return to_str(self.provider_vendor); })
      .def_readonly("ep_metadata", &EpDevice::provider_metadata)
      .def_readonly("ep_options", &EpDevice::provider_options)
      .def_property_readonly("device",
                             [](std::shared_ptr<const EpDevice> self) { return PythonHardware{std::move(self)}; })
      .def_property_readonly("_name", [](const EpDevice& self) { return self.plugin ? to_string(self.device) : ""; })
      .def_property_readonly("_library",
                             [](const EpDevice& self) { return self.plugin ? to_str(self.plugin->path) : py::str(); });
  using Nogil = py::call_guard<ReleaseGil>;  // the libraries run code of their own
  module.def(
      "register_plugin",
      [](const std::string& name, const Path& path) { register_plugin(OnnxRuntime::get(), name, path); },
      py::arg("name"), py::arg("path"), Nogil());
  module.def(
      "unregister_plugin", [](const std::string& name) { unregister_plugin(OnnxRuntime::get(), name); },
      py::arg("name"), Nogil());
  module.def("ep_devices", [] { return ep_devices(OnnxRuntime::get()); }, Nogil());
}

}  // namespace ortmulti::bindings
