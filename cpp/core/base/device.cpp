#include "core/base/device.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>

#include "core/base/error.hpp"
#include "core/base/file.hpp"

namespace ortmulti {

std::string to_string(const Device& device) {
  return device.is_cuda() ? "cuda:" + std::to_string(device.index) : "cpu";
}

Device parse_device(std::string_view text) {
  if (text == "cpu") {
    return Device::cpu();
  }
  if (text == "cuda") {
    return Device::cuda(0);
  }
  constexpr std::string_view prefix = "cuda:";
  if (text.substr(0, prefix.size()) == prefix) {
    const std::string_view digits = text.substr(prefix.size());
    int index = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (error == std::errc() && end == digits.data() + digits.size() && index >= 0 && digits.front() != '-') {
      return Device::cuda(index);
    }
  }
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char letter) { return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter + 32) : letter; });
  std::string hint;
  if (lower.find(',') != std::string::npos) {
    hint = ". Several devices are a list, such as ['cuda:0', 'cuda:1']";
  } else if (lower.rfind("gpu", 0) == 0) {
    hint = " (did you mean 'cuda" + lower.substr(3) + "'?)";
  } else if (lower != text) {
    hint = " (did you mean '" + lower + "'?)";
  }
  throw Error(ErrorKind::invalid_argument,
              "unknown device '" + std::string(text) + "': expected 'all', 'cpu', 'cuda', 'cuda:N' or N" + hint);
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
    if (first_word(entry->path() / "vendor") == "0x10de" && first_word(entry->path() / "class").rfind("0x03", 0) == 0) {
      return true;
    }
  }
  return false;
}

}  // namespace ortmulti
