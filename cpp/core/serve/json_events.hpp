#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/serve/asked.hpp"
#include "core/serve/json_numbers.hpp"

namespace ortmulti::serve {

/// Python's json has NaN and Infinity, which JSON has not. They are read as zeros that nobody writes like this. The
/// text with these marks in their place; nothing where it has none.
std::optional<std::string> with_marks(std::string_view text);
/// What a number is: that of a mark, or the value.
double marked(double value, std::string_view token) noexcept;
/// What is wrong with a text that is no JSON.
std::string why_no_json(std::string_view text);

/// What readers of a request's JSON have in common: numbers become values, and errors are kept. As a list is opened,
/// its numbers may be read by `cursor()`.
template <typename Reader>
class JsonEvents {
 public:
  using json = nlohmann::json;
  using Kind = SentValue::Kind;

  bool null() { return self().value({Kind::null}); }
  bool boolean(bool value) { return self().value({Kind::boolean, value}); }
  bool number_integer(json::number_integer_t value) { return self().number(value); }
  bool number_unsigned(json::number_unsigned_t value) { return self().number(value); }
  bool number_float(json::number_float_t value, const std::string& token) {
    const bool integer = token.find_first_of(".eE") == std::string::npos;
    return integer ? self().large_integer(value, token) : self().number(marked(value, token));
  }
  bool binary(json::binary_t& /*value*/) { return false; }
  bool start_object(std::size_t /*size*/) { return self().open(Kind::object); }
  bool start_array(std::size_t /*size*/) { return self().open(Kind::list); }
  bool end_object() { return self().close(); }
  bool end_array() { return self().close(); }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/, const json::exception& /*error*/) {
    return false;
  }

  /// Throws Refused.
  void read(std::string_view text) {
    const std::optional<std::string> with = with_marks(text);
    text = with ? std::string_view(*with) : text;
    cursor_ = JsonCursor(text);
    if (!json::sax_parse(cursor_.begin(), JsonCursor::end(), &self())) {
      // Its own message would not count what the cursor has read.
      refuse("failed to parse the request JSON buffer: " + (problem_.empty() ? why_no_json(text) : problem_));
    }
  }

  /// Where the text is read.
  JsonCursor& cursor() noexcept { return cursor_; }
  /// Ends the reading.
  bool fail(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }

 private:
  friend Reader;
  JsonEvents() : cursor_("") {}
  Reader& self() { return static_cast<Reader&>(*this); }

  JsonCursor cursor_;
  std::string problem_;
};

}  // namespace ortmulti::serve
