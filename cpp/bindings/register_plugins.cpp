#include <pybind11/stl.h>

#include <memory>
#include <string>

#include "bindings/gil.hpp"
#include "bindings/registrations.hpp"
#include "bindings/text.hpp"
#include "core/create/preload.hpp"
#include "core/ort/library.hpp"
#include "core/ort/plugins.hpp"

namespace ortmulti::bindings {
namespace {

// Kinds of hardware, with ONNX Runtime's numbers.
enum class HardwareType : std::uint8_t { cpu, gpu, npu };

}  // namespace

void register_plugins(py::module_& module) {
  py::enum_<HardwareType>(module, "OrtHardwareDeviceType",
                          "The type of a device's hardware: ``CPU``, ``GPU`` or ``NPU``.")
      .value("CPU", HardwareType::cpu, "A processor.")
      .value("GPU", HardwareType::gpu, "A graphics processor.")
      .value("NPU", HardwareType::npu, "A processor for neural networks.");
  using Hardware = EpDevice::Hardware;
  py::class_<Hardware>(module, "OrtHardwareDevice", R"(The hardware of an `OrtEpDevice`.

Attributes:
    type: Its `OrtHardwareDeviceType`.
    vendor: Its vendor's name; may be empty.
    vendor_id: The vendor's number on the PCI bus; on the CPU ONNX Runtime's own number.
    device_id: Its number on the PCI bus; 0 for CPUs.
    metadata: Facts about it, by their names.)")
      .def_property_readonly("type", [](const Hardware& self) { return static_cast<HardwareType>(self.type); })
      .def_property_readonly("vendor", [](const Hardware& self) { return to_str(self.vendor); })
      .def_readonly("vendor_id", &Hardware::vendor_id)
      .def_readonly("device_id", &Hardware::device_id)
      .def_readonly("metadata", &Hardware::metadata);
  py::class_<EpDevice, std::shared_ptr<EpDevice>>(
      module, "OrtEpDevice",
      R"(A device that an execution provider can use, from `get_ep_devices`. It is valid while its plug-in is registered.

Attributes:
    ep_name: The provider's name, such as ``"OpenVINOExecutionProvider"``.
    ep_vendor: Who has made the provider.
    ep_metadata: Facts about the provider on this device, such as its ``version``.
    ep_options: Options that the provider gets by default.
    device: The hardware.)")
      .def_property_readonly("ep_name", [](const EpDevice& self) { return to_str(self.provider); })
      .def_property_readonly("ep_vendor", [](const EpDevice& self) { return to_str(self.provider_vendor); })
      .def_readonly("ep_metadata", &EpDevice::provider_metadata)
      .def_readonly("ep_options", &EpDevice::provider_options)
      .def_readonly("device", &EpDevice::hardware)
      .def_property_readonly("_name", [](const EpDevice& self) { return self.plugin ? to_string(self.device) : ""; })
      .def_property_readonly("_library",
                             [](const EpDevice& self) { return self.plugin ? to_str(self.plugin->path) : py::str(); });
  // The libraries run code of their own.
  module.def(
      "register_plugin",
      [](const std::string& name, const Path& path) { register_plugin(OnnxRuntime::get(), name, path); },
      py::arg("name"), py::arg("path"), Nogil());
  module.def(
      "unregister_plugin",
      [](const std::string& name) {
        wait_for_preloads();  // which have sessions
        unregister_plugin(OnnxRuntime::get(), name);
      },
      py::arg("name"), Nogil());
  module.def("ep_devices", [] { return ep_devices(OnnxRuntime::get()); }, Nogil());
}

}  // namespace ortmulti::bindings
