#pragma once

#include <onnxruntime_cxx_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/device.hpp"

struct OrtEpDevice;

namespace ortmulti {

class OnnxRuntime;
struct Provider;

/// A library of execution providers that is, or was, registered with ONNX Runtime's environment.
struct Plugin {
  std::string name;  ///< Of its registration.
  std::string path;
  std::shared_ptr<const void> in_use;  ///< Each session on its devices holds another reference.
};

/// A device that an execution provider can use, as ONNX Runtime reports it.
struct EpDevice {
  using Pairs = std::map<std::string, std::string>;
  struct Hardware {
    int type = 0;  ///< 0: CPU, 1: GPU, 2: NPU.
    std::string vendor;
    std::uint32_t vendor_id = 0;
    std::uint32_t device_id = 0;
    Pairs metadata;
  };

  Device device;  ///< By which sessions are created on it.
  std::string provider;
  std::string provider_vendor;
  Pairs provider_metadata;
  Pairs provider_options;
  Hardware hardware;
  const OrtEpDevice* handle = nullptr;   ///< Valid while the plug-in is registered.
  std::shared_ptr<const Plugin> plugin;  ///< Null: the provider is built into ONNX Runtime.
};

using EpDevices = std::vector<std::shared_ptr<const EpDevice>>;

// These throw Error: where the release has no plug-ins (before 1.22), in a child that was forked after a registration,
// and as they say.

/// Loads a library under a name that is free. ErrorKind::fail and others: it cannot be loaded, or is no plug-in.
void register_plugin(OnnxRuntime& runtime, const std::string& name, const std::string& path);

/// Unloads a library. ErrorKind::fail: no such name is registered, or a session uses one of its devices.
void unregister_plugin(OnnxRuntime& runtime, const std::string& name);

/// The devices of the providers that are registered or built in.
EpDevices ep_devices(OnnxRuntime& runtime);

/// The provider with its devices where it names a device of a plug-in ("openvino:CPU"), or else as it is. The CUDA
/// provider has its device if a plug-in with this provider is registered; it is, where ONNX Runtime has none built in.
/// ErrorKind::device: there is no such device.
Provider with_devices(OnnxRuntime& runtime, Provider provider);

/// Keeps the plug-ins of these providers registered. ErrorKind::fail: one of them is registered no more.
std::vector<std::shared_ptr<const void>> use_plugins(const std::vector<Provider>& providers);

}  // namespace ortmulti
