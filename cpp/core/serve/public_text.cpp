// GCC 12 warns of its own <regex>, where AddressSanitizer is used.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "core/serve/public_text.hpp"

#include <algorithm>
#include <regex>
#include <vector>

#include "core/base/error.hpp"
#include "core/serve/asked.hpp"
#include "core/serve/datatypes.hpp"

namespace ortmulti::serve {
namespace {

// The most characters of a message that are searched: std::regex takes stack for each.
constexpr std::size_t most_characters = 1000;

// std::regex looks ahead, but not behind: what stands before is put back.
struct Rule {
  std::regex found;
  const char* instead;
};

const std::vector<Rule>& rules() {
  // Leaked: threads may need it up to the end of the process.
  static const auto& all = *new std::vector<Rule>{
      // NOLINT(cppcoreguidelines-owning-memory)
      {std::regex(R"(^running .+? on \w+(:\d+)?: )"), ""},
      // Folders of an unquoted path may have blanks, which its file's ending shows.
      {std::regex(R"((^|[^\w./'"])/(?:[^/:'"]*[^/:'"\s]/)+(?=[^/:'"]*\.(?:onnx\w*|ort|data|bin)\b))"), "$1"},
      {std::regex(R"((['"])(?:/[^'"]*/|[^'"]*/(?=[^'"/]*\.(?:onnx\w*|ort|data|bin)\1)))"), "$1"},
      {std::regex(R"((^|[^\w./])/(?:[^\s/]+/)+)"), "$1"},
  };
  return all;
}

std::string as_utf8(const std::string& text) {
  if (is_utf8(text)) {
    return text;
  }
  std::string out;
  for (const char letter : text) {
    out += static_cast<unsigned char>(letter) < 0x80 ? letter : '?';
  }
  return out;
}

}  // namespace

std::string without_folders(const std::string& message) {
  static const auto& prefix =
      *new std::regex(R"(^\[ONNXRuntimeError\] : \d+ : \w+ : )");  // NOLINT(cppcoreguidelines-owning-memory)
  const std::string begin = shortened(as_utf8(message), most_characters);
  std::string text = std::regex_replace(begin, prefix, "", std::regex_constants::format_first_only);
  text.resize(std::min(text.find('\n'), text.size()));
  for (const Rule& rule : rules()) {
    text = std::regex_replace(text, rule.found, rule.instead);
  }
  return text;
}

PublicError public_error(const std::exception_ptr& error) {
  const ErrorKind kind = kind_of(error).value_or(ErrorKind::fail);
  switch (kind) {
    case ErrorKind::deadline:
      return {503, "Request timeout expired"};
    case ErrorKind::queue_full:
      return {503, "Exceeds maximum queue size"};
    case ErrorKind::not_implemented:
      return {501, without_folders(text_of(error))};
    case ErrorKind::invalid_argument:
    case ErrorKind::invalid_type:
      return {400, without_folders(text_of(error))};
    case ErrorKind::not_found:
      return {404, without_folders(text_of(error))};
    case ErrorKind::closed:
    case ErrorKind::device:
    case ErrorKind::out_of_memory:
    case ErrorKind::weights:
      return {503, "the service cannot take the request now"};
    default:
      return {500, "the request failed"};
  }
}

}  // namespace ortmulti::serve
