#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ortmulti {

/// Where a session runs: the CPU, or a GPU under CUDA's number in this process.
struct Device {
  enum class Kind { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;  ///< Always 0 for the CPU.

  static Device cpu() { return {}; }
  static Device cuda(int index) { return {Kind::cuda, index}; }
  bool is_cuda() const noexcept { return kind == Kind::cuda; }
};

inline bool operator==(const Device& a, const Device& b) { return a.kind == b.kind && a.index == b.index; }
inline bool operator!=(const Device& a, const Device& b) { return !(a == b); }

/// "cpu" or "cuda:3".
std::string to_string(const Device& device);

/// Parses "cpu", "cuda" (the first GPU) and "cuda:3"; throws Error with ErrorKind::invalid_argument.
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
