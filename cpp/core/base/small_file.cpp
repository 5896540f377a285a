#include "core/base/small_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>

namespace ortmulti {
namespace {

std::vector<std::string> split(const std::string& text, const char* separators) {
  std::vector<std::string> parts;
  for (std::size_t begin = text.find_first_not_of(separators); begin != std::string::npos;) {
    const std::size_t end = text.find_first_of(separators, begin);
    parts.push_back(text.substr(begin, end == std::string::npos ? end : end - begin));
    begin = text.find_first_not_of(separators, end);
  }
  return parts;
}

}  // namespace

std::string read_small_file(const std::string& path) {
  constexpr std::size_t limit = 1'000'000;
  std::string text;
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    return text;
  }
  std::array<char, 4096> block{};
  for (ssize_t count = 1; count > 0 && text.size() < limit;) {
    count = read(descriptor, block.data(), block.size());
    if (count > 0) {
      text.append(block.data(), static_cast<std::size_t>(count));
    }
  }
  close(descriptor);
  return text;
}

std::vector<std::string> split_lines(const std::string& text) { return split(text, "\n"); }

std::vector<std::string> split_words(const std::string& text) { return split(text, " \t\n"); }

}  // namespace ortmulti
