#include "core/ort/plugins.hpp"

#include <array>
#include <atomic>
#include <iterator>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/fork.hpp"
#include "core/base/text.hpp"
#include "core/ort/api_compat.hpp"
#include "core/ort/checked.hpp"
#include "core/ort/library.hpp"
#include "core/ort/options.hpp"
#include "core/ort/session.hpp"

namespace ortmulti {
namespace {

constexpr const char* cuda_provider = "CUDAExecutionProvider";

struct Plugins {
  std::mutex cuda_mutex;  // held while CUDA's is registered; taken before the other
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<const Plugin>> plugins;           // by their names
  std::map<const OrtEpDevice*, std::shared_ptr<const Plugin>> plugin_of;  // of their devices
};

Plugins& all_plugins() { return process_singleton<Plugins>(); }

// The process, by fork_generation(), in which a plug-in was first registered; -1: in none.
std::atomic<int> registered_in{-1};

int this_process() { return static_cast<int>(fork_generation()); }

void check_process() {
  if (const int process = registered_in.load(); process >= 0 && process != this_process()) {
    throw Error(ErrorKind::forked,
                "plug-ins of execution providers were registered before this process was forked, and their threads "
                "stayed with the parent: register them after the fork, or start workers with multiprocessing's "
                "'spawn'");
  }
}

std::vector<const OrtEpDevice*> device_handles(OnnxRuntime& runtime, const ort_api_compat::PluginApi& api) {
  const OrtEpDevice* const* devices = nullptr;
  std::size_t count = 0;
  Ort::ThrowOnError(api.devices(runtime.env(), &devices, &count));
  return {devices, devices + count};
}

std::string to_text(const char* pointer) { return pointer == nullptr ? "" : pointer; }

EpDevice::Pairs to_pairs(const ort_api_compat::PluginApi& api, const OrtKeyValuePairs* given) {
  const char* const* keys = nullptr;
  const char* const* values = nullptr;
  std::size_t count = 0;
  if (given != nullptr) {
    api.pairs(given, &keys, &values, &count);
  }
  EpDevice::Pairs found;
  for (std::size_t i = 0; i < count; ++i) {
    found.emplace(to_text(keys[i]), to_text(values[i]));
  }
  return found;
}

EpDevice describe_device(const ort_api_compat::PluginApi& api, const OrtEpDevice* handle) {
  const OrtHardwareDevice* hardware = api.hardware(handle);
  EpDevice found;
  found.handle = handle;
  found.provider = to_text(api.provider_name(handle));
  found.provider_vendor = to_text(api.provider_vendor(handle));
  found.provider_metadata = to_pairs(api, api.provider_metadata(handle));
  found.provider_options = to_pairs(api, api.provider_options(handle));
  found.hardware = {api.hardware_type(hardware), to_text(api.hardware_vendor(hardware)),
                    api.hardware_vendor_id(hardware), api.hardware_device_id(hardware),
                    to_pairs(api, api.hardware_metadata(hardware))};
  return found;
}

// CUDA's number of the device if it is the CUDA provider's, else -1. The plug-in of release 0.1 has the longer name.
int cuda_number(const EpDevice& device) {
  const auto id = device.provider_options.find("device_id");
  const bool cuda = device.provider == cuda_provider || device.provider == "CudaPluginExecutionProvider";
  return cuda && id != device.provider_options.end() ? parse_device("cuda:" + id->second).index : -1;
}

// "openvino:GPU" of "OpenVINOExecutionProvider", "openvino.auto:GPU" of "OpenVINOExecutionProvider.AUTO".
std::string name_of(const EpDevice& device) {
  std::string provider = device.provider;
  constexpr std::string_view suffix = "ExecutionProvider";
  if (const std::size_t at = provider.find(suffix); at != std::string::npos && at > 0) {
    provider.erase(at, suffix.size());
  }
  constexpr std::array<const char*, 3> types = {"CPU", "GPU", "NPU"};
  const auto type = static_cast<std::size_t>(device.hardware.type);
  return parse_device(provider + ":" + (type < types.size() ? types[type] : "CPU")).name;
}

// The caller holds the lock.
EpDevices find_devices(OnnxRuntime& runtime, const Plugins& registered) {
  const ort_api_compat::PluginApi api = ort_api_compat::plugin_api();
  EpDevices found;
  std::map<std::string, int> counts;
  for (const OrtEpDevice* handle : device_handles(runtime, api)) {
    EpDevice device = describe_device(api, handle);
    if (const auto plugin = registered.plugin_of.find(handle); plugin != registered.plugin_of.end()) {
      device.plugin = plugin->second;
      if (const int number = cuda_number(device); number >= 0) {
        device.device = Device::cuda(number);
      } else {
        const std::string name = name_of(device);
        device.device = Device::plugin(name, counts[name]++);
      }
    }
    found.push_back(std::make_shared<const EpDevice>(std::move(device)));
  }
  return found;
}

void register_cuda_plugin(OnnxRuntime& runtime) {
  Plugins& registered = all_plugins();
  const std::lock_guard lock(registered.cuda_mutex);
  {
    const std::lock_guard lock_of_all(registered.mutex);
    for (const auto& [name, plugin] : registered.plugins) {
      if (name == cuda_provider || plugin->path == runtime.cuda_plugin()) {
        return;
      }
    }
  }
  register_plugin(runtime, cuda_provider, runtime.cuda_plugin());
}

}  // namespace

void register_plugin(OnnxRuntime& runtime, const std::string& name, const std::string& path) {
  const ort_api_compat::PluginApi api = ort_api_compat::plugin_api();
  check_process();
  Plugins& registered = all_plugins();
  const std::lock_guard lock(registered.mutex);
  const std::string context = "registering the execution providers of '" + path + "' as '" + name + "'";
  if (registered.plugins.contains(name)) {
    throw Error(ErrorKind::fail, context +
                                     ": a library is already registered under this name; unregister it before, "
                                     "or use its devices");
  }
  const auto plugin = std::make_shared<const Plugin>(Plugin{name, path, std::make_shared<const char>()});
  try {
    const std::vector<const OrtEpDevice*> before = device_handles(runtime, api);
    int nobody = -1;
    registered_in.compare_exchange_strong(nobody, this_process());
    Ort::ThrowOnError(api.register_library(runtime.env(), name.c_str(), path.c_str()));
    registered.plugins.emplace(name, plugin);
    const std::set<const OrtEpDevice*> known(before.begin(), before.end());
    for (const OrtEpDevice* device : device_handles(runtime, api)) {
      if (!known.contains(device)) {
        registered.plugin_of.emplace(device, plugin);
      }
    }
  } catch (const Ort::Exception& exception) {
    const bool no_plugin = std::string_view(exception.what()).find("CreateEpFactories") != std::string_view::npos;
    throw from_onnxruntime(exception, context,
                           no_plugin ? "The library is no plug-in of execution providers: it does not export "
                                       "CreateEpFactories. Give the path of a plug-in, such as a package's "
                                       "get_library_path() returns."
                                     : "");
  }
}

void unregister_plugin(OnnxRuntime& runtime, const std::string& name) {
  const ort_api_compat::PluginApi api = ort_api_compat::plugin_api();
  check_process();
  Plugins& registered = all_plugins();
  const std::lock_guard lock(registered.mutex);
  const std::string context = "unregistering the execution providers of '" + name + "'";
  const auto found = registered.plugins.find(name);
  if (found == registered.plugins.end()) {
    const auto names = listed(registered.plugins, [](const auto& plugin) { return in_quotes(plugin.first); });
    throw Error(ErrorKind::fail,
                context + ": this name was not registered; registered are " + (names.empty() ? "none" : names));
  }
  const std::shared_ptr<const Plugin> plugin = found->second;
  if (const auto sessions = plugin->in_use.use_count() - 1; sessions > 0) {
    throw Error(ErrorKind::fail, context + ": " + std::to_string(sessions) +
                                     (sessions == 1 ? " session uses" : " sessions use") +
                                     " its devices; close them first");
  }
  for (auto device = registered.plugin_of.begin(); device != registered.plugin_of.end();) {
    device = device->second == plugin ? registered.plugin_of.erase(device) : std::next(device);
  }
  registered.plugins.erase(found);
  checked(context, [&] { Ort::ThrowOnError(api.unregister_library(runtime.env(), name.c_str())); });
}

EpDevices ep_devices(OnnxRuntime& runtime) {
  check_process();
  Plugins& registered = all_plugins();
  const std::lock_guard lock(registered.mutex);
  return checked("listing the devices of execution providers", [&] { return find_devices(runtime, registered); });
}

Provider with_devices(OnnxRuntime& runtime, Provider provider) {
  const bool cuda = provider.name == cuda_provider;
  const bool built_in = cuda && runtime.cuda_plugin().empty();
  if (!provider.devices.empty() || (!cuda && provider.name.find(':') == std::string::npos) ||
      (built_in && registered_in.load() != this_process())) {
    return provider;
  }
  if (cuda && !built_in) {
    register_cuda_plugin(runtime);
  }
  const Device wanted = device_of({provider});
  std::string known;
  for (const auto& device : ep_devices(runtime)) {
    if (device->plugin && device->device == wanted) {
      provider.name = device->provider;
      provider.devices = {device};
      return provider;
    }
    if (device->plugin) {
      known += (known.empty() ? "" : ", ") + to_string(device->device);
    }
  }
  if (built_in) {
    return provider;
  }
  throw Error(ErrorKind::device, "there is no device " + to_string(wanted) + ": the registered plug-ins have " +
                                     (known.empty() ? "none" : known + "; name one of them"));
}

std::vector<std::shared_ptr<const void>> use_plugins(const std::vector<Provider>& providers) {
  std::vector<std::shared_ptr<const void>> used;
  for (const Provider& provider : providers) {
    for (const auto& device : provider.devices) {
      if (!device->plugin) {
        continue;
      }
      check_process();
      Plugins& registered = all_plugins();
      const std::lock_guard lock(registered.mutex);
      const auto found = registered.plugins.find(device->plugin->name);
      if (found == registered.plugins.end() || found->second != device->plugin) {
        throw Error(ErrorKind::fail, "the device of " + device->provider + " belongs to the library '" +
                                         device->plugin->name +
                                         "', which is registered no more: register it, and take its devices from "
                                         "get_ep_devices() again");
      }
      used.push_back(device->plugin->in_use);
    }
  }
  return used;
}

}  // namespace ortmulti
