#include "core/serve/json_events.hpp"

#include <algorithm>
#include <limits>

#include "core/serve/datatypes.hpp"

namespace ortmulti::serve {
namespace {

using nlohmann::json;

// NaN and the infinities of JSON are replaced by these numbers, each with a blank behind it.
constexpr std::string_view nan_mark = "0e-0001";
constexpr std::string_view infinity_mark = "0e-0002";

std::string explained(const std::string& what) {
  if (what.find("surrogate") != std::string::npos) {
    return "surrogates not allowed";
  }
  std::string_view text = what;
  text.remove_prefix(std::min(text.find("] ") + 2, text.size()));
  text = text.substr(0, text.find("; last read"));
  constexpr std::size_t most = 100;
  return is_utf8(text) ? shortened(text, most) : "it is not UTF-8";
}

// Keeps the parser's error, and ignores all values.
class Complaint : public json::json_sax_t {
 public:
  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(json::number_integer_t /*value*/) override { return true; }
  bool number_unsigned(json::number_unsigned_t /*value*/) override { return true; }
  bool number_float(json::number_float_t /*value*/, const std::string& /*token*/) override { return true; }
  bool string(std::string& /*text*/) override { return true; }
  bool binary(json::binary_t& /*value*/) override { return true; }
  bool start_object(std::size_t /*size*/) override { return true; }
  bool key(std::string& /*name*/) override { return true; }
  bool end_object() override { return true; }
  bool start_array(std::size_t /*size*/) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/, const json::exception& error) override {
    text = explained(error.what());
    return false;
  }

  std::string text = "it is no JSON";
};

}  // namespace

double marked(double value, std::string_view token) noexcept {
  if (token == nan_mark) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (token.ends_with(infinity_mark)) {
    const double infinity = std::numeric_limits<double>::infinity();
    return token == infinity_mark ? infinity : token.front() == '-' ? -infinity : value;
  }
  return value;
}

std::optional<std::string> with_marks(std::string_view text) {
  constexpr std::string_view words[] = {"NaN", "Infinity"};
  constexpr std::string_view marks[] = {nan_mark, infinity_mark};
  if (std::ranges::none_of(words, [text](auto word) { return text.find(word) != std::string_view::npos; })) {
    return std::nullopt;
  }
  std::string out;
  bool quoted = false;
  char before = '[';  // the last one that is no blank
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char letter = text[i];
    const bool begins = !quoted && (before == '[' || before == ',' || before == ':' ||
                                    (before == '-' && letter == 'I' && text[i - 1] == '-'));
    const std::size_t word = letter == 'N' ? 0 : 1;
    if (begins && text.substr(i).starts_with(words[word])) {
      out += marks[word];
      out += ' ';
      i += words[word].size() - 1;
      before = '0';
      continue;
    }
    if (quoted && letter == '\\' && i + 1 < text.size()) {
      out += letter;
      ++i;
    } else if (letter == '"') {
      quoted = !quoted;
    }
    out += text[i];
    if (letter != ' ' && letter != '\t' && letter != '\n' && letter != '\r') {
      before = letter;
    }
  }
  return out;
}

std::string why_no_json(std::string_view text) {
  Complaint complaint;
  json::sax_parse(text.data(), text.data() + text.size(), &complaint);
  return complaint.text;
}

}  // namespace ortmulti::serve
