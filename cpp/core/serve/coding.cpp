#include "core/serve/coding.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "core/base/text.hpp"

namespace ortmulti::serve {
namespace {

constexpr std::array<std::string_view, 2> codings{"gzip", "deflate"};

// "q=0", "q=0.0": the client wants another one.
bool is_refused(std::string_view weight) {
  return weight.starts_with("q=0") && weight.find_first_not_of(".0", 2) == std::string_view::npos;
}

}  // namespace

std::string_view accepted_coding(const Headers& request, bool binary) {
  const std::string* const header = find(request, "accept-encoding");
  if (header == nullptr || (binary && header->find(',') != std::string::npos)) {
    return "";
  }
  std::string text = lower_case(*header);
  std::erase_if(text, [](char letter) { return letter == ' ' || letter == '\t'; });
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view part = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    const std::size_t name = std::min(part.find(';'), part.size());
    const auto* const coding = std::ranges::find(codings, part.substr(0, name));
    if (coding != codings.end() && !is_refused(part.substr(std::min(name + 1, part.size())))) {
      return *coding;
    }
  }
  return "";
}

}  // namespace ortmulti::serve
