#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace ortmulti {

/// Where a session runs: the CPU, a GPU under CUDA's number in this process, or a device of a plug-in's provider.
struct Device {
  enum class Kind { cpu, cuda, plugin };
  Kind kind = Kind::cpu;
  int index = 0;     ///< Always 0 for the CPU; of a plug-in's devices, among those of the same provider and type.
  std::string name;  ///< Of a plug-in's device without its index: "openvino:GPU".

  static Device cpu() { return {}; }
  static Device cuda(int index) { return {Kind::cuda, index, {}}; }
  static Device plugin(std::string name, int index) { return {Kind::plugin, index, std::move(name)}; }
  bool is_cuda() const noexcept { return kind == Kind::cuda; }
  bool is_plugin() const noexcept { return kind == Kind::plugin; }
  bool operator==(const Device&) const = default;
};

/// "cpu", "cuda:3", "openvino:GPU" or "openvino:GPU.1".
std::string to_string(const Device& device);

/// Parses "cpu", "cuda" (the first GPU), "cuda:3", and the names of plug-ins' devices in letters of any case; throws
/// Error with ErrorKind::invalid_argument.
Device parse_device(std::string_view text);

struct CudaDeviceInfo {
  int index = 0;
  std::string name;
  std::string uuid;                ///< "GPU-" and 36 characters, as NVML and nvidia-smi print it.
  std::string pci_bus_id;          ///< "0000:18:00.0"
  std::uint64_t total_memory = 0;  ///< Bytes.
  int compute_major = 0;
  int compute_minor = 0;
};

/// Whether an NVIDIA display or compute controller is on the PCI bus as the kernel lists it below `sysfs` ("/sys"):
/// tells a machine without GPUs from one whose driver does not work.
bool has_nvidia_hardware(const std::string& sysfs);

}  // namespace ortmulti
