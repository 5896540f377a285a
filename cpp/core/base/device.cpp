#include "core/base/device.hpp"

#include <filesystem>
#include <optional>
#include <system_error>

#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/base/text.hpp"

namespace ortmulti {

namespace {

// "cpu", "cuda" or "cuda:3".
std::optional<Device> parse_own_device(std::string_view text) {
  if (text == "cpu") {
    return Device::cpu();
  }
  if (text == "cuda") {
    return Device::cuda(0);
  }
  constexpr std::string_view prefix = "cuda:";
  if (text.starts_with(prefix)) {
    if (const auto index = whole_number<int>(text.substr(prefix.size()))) {
      return Device::cuda(*index);
    }
  }
  return std::nullopt;
}

// "openvino:GPU.1": a provider, a type of hardware, and an index where that is not 0.
std::optional<Device> parse_plugin_device(const std::string& lower) {
  const std::size_t colon = lower.find(':');
  if (colon == 0 || colon == std::string::npos ||
      lower.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_.-") != colon) {
    return std::nullopt;
  }
  for (const std::string_view type : {"CPU", "GPU", "NPU"}) {
    const std::size_t end = colon + 1 + type.size();
    if (lower.compare(colon + 1, type.size(), lower_case(std::string(type))) == 0 &&
        (end == lower.size() || lower[end] == '.')) {
      const auto index = end == lower.size() ? 0 : whole_number<int>(std::string_view(lower).substr(end + 1));
      if (index) {
        return Device::plugin(lower.substr(0, colon + 1).append(type), *index);
      }
    }
  }
  return std::nullopt;
}

}  // namespace

std::string to_string(const Device& device) {
  switch (device.kind) {
    case Device::Kind::cpu:
      return "cpu";
    case Device::Kind::cuda:
      return "cuda:" + std::to_string(device.index);
    case Device::Kind::plugin:
      break;
  }
  return device.index == 0 ? device.name : device.name + "." + std::to_string(device.index);
}

Device parse_device(std::string_view text) {
  if (const std::optional<Device> device = parse_own_device(text)) {
    return *device;
  }
  const std::string lower = lower_case(std::string(text));
  if (const std::optional<Device> device = parse_plugin_device(lower)) {
    return *device;
  }
  std::string hint;
  if (lower.find(',') != std::string::npos) {
    hint = ". Several devices are a list, such as ['cuda:0', 'cuda:1']";
  } else if (lower.starts_with("gpu")) {
    hint = " (did you mean 'cuda" + lower.substr(3) + "'?)";
  } else if (lower != text && (lower == "all" || parse_own_device(lower))) {
    hint = " (did you mean '" + lower + "'?)";
  }
  throw Error(ErrorKind::invalid_argument,
              "unknown device '" + std::string(text) +
                  "': expected 'all', 'cpu', 'cuda', 'cuda:N', N or 'openvino:CPU' of a plug-in" + hint);
}

bool has_nvidia_hardware(const std::string& sysfs) {
  const auto first_word = [](const std::filesystem::path& path) {
    const std::vector<std::string> words = split_words(read_small_file(path.string()));
    return words.empty() ? std::string() : words.front();
  };
  std::error_code error;
  for (std::filesystem::directory_iterator entry(sysfs + "/bus/pci/devices", error), end; !error && entry != end;
       entry.increment(error)) {
    // Class 0x03: display controllers, among them GPUs without a display (0x0302).
    if (first_word(entry->path() / "vendor") == "0x10de" && first_word(entry->path() / "class").starts_with("0x03")) {
      return true;
    }
  }
  return false;
}

}  // namespace ortmulti
