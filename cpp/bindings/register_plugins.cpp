#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/gil.hpp"
#include "bindings/python_ep_device.hpp"
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
  py::class_<PythonEpDevice>(module, "OrtEpDevice")
      .def_property_readonly("ep_name", [](const PythonEpDevice& self) { return to_str(self.device->provider); })
      .def_property_readonly("ep_vendor",
                             [](const PythonEpDevice& self) { return to_str(self.device->provider_vendor); })
      .def_property_readonly("ep_metadata", [](const PythonEpDevice& self) { return self.device->provider_metadata; })
      .def_property_readonly("ep_options", [](const PythonEpDevice& self) { return self.device->provider_options; })
      .def_property_readonly("device", [](const PythonEpDevice& self) { return PythonHardware{self.device}; })
      .def_property_readonly("_name",
                             [](const PythonEpDevice& self) {
                               return self.device->plugin ? to_string(self.device->device) : std::string();
                             })
      .def_property_readonly("_library", [](const PythonEpDevice& self) {
        return self.device->plugin ? to_str(self.device->plugin->path) : py::str();
      });
  module.def(
      "register_plugin",
      [](const std::string& name, const py::str& path) {
        const std::string text = from_path(path);
        const ReleaseGil nogil;  // the library runs code of its own
        register_plugin(OnnxRuntime::get(), name, text);
      },
      py::arg("name"), py::arg("path"));
  module.def(
      "unregister_plugin", [](const std::string& name) { unregister_plugin(OnnxRuntime::get(), name); },
      py::arg("name"), py::call_guard<ReleaseGil>());
  module.def("ep_devices", [] {
    EpDevices devices;
    {
      const ReleaseGil nogil;
      devices = ep_devices(OnnxRuntime::get());
    }
    std::vector<PythonEpDevice> result;
    result.reserve(devices.size());
    for (auto& device : devices) {
      result.push_back({std::move(device)});
    }
    return result;
  });
}

}  // namespace ortmulti::bindings
