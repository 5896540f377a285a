#include "core/small_file.hpp"

#include <array>
#include <cstdio>
#include <memory>

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
  const auto close = [](std::FILE* file) { std::fclose(file); };
  const std::unique_ptr<std::FILE, decltype(close)> file(std::fopen(path.c_str(), "re"), close);
  std::string text;
  std::array<char, 4096> block{};
  if (!file) {
    return text;
  }
  std::size_t count = block.size();
  while (count == block.size() && text.size() < limit) {  // fewer bytes than asked for: the end
    count = std::fread(block.data(), 1, block.size(), file.get());
    text.append(block.data(), count);
  }
  return text;
}

std::vector<std::string> split_lines(const std::string& text) { return split(text, "\n"); }

std::vector<std::string> split_words(const std::string& text) { return split(text, " \t\n"); }

}  // namespace ortmulti
