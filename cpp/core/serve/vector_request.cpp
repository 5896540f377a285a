#include "core/serve/vector_request.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace ortmulti::serve {
namespace {

using nlohmann::json;

// The most bytes of a body that is read here, in some tens of microseconds.
constexpr std::size_t most_bytes = std::size_t{16} << 10;

enum class Field : std::uint8_t { input, model, coding, dimensions, normalize, truncate, prompt, side, user };
using Names = std::array<std::pair<std::string_view, Field>, 8>;

constexpr Names of_openai = {{{"input", Field::input},
                              {"model", Field::model},
                              {"encoding_format", Field::coding},
                              {"dimensions", Field::dimensions},
                              {"normalize", Field::normalize},
                              {"truncate", Field::truncate},
                              {"prompt_name", Field::prompt},
                              {"user", Field::user}}};
constexpr Names of_tei = {{{"inputs", Field::input},
                           {"model", Field::model},
                           {"dimensions", Field::dimensions},
                           {"normalize", Field::normalize},
                           {"truncate", Field::truncate},
                           {"prompt_name", Field::prompt},
                           {"truncation_direction", Field::side},
                           {"user", Field::user}}};

// Ends with the first thing that is not simple.
class Reader : public json::json_sax_t {
 public:
  Reader(const Names& names, AskedVectors& to) : names_(names), to_(to) {}

  bool null() override { return in_request() && field_ != Field::input; }
  bool boolean(bool value) override {
    if (!in_request() || (field_ != Field::normalize && field_ != Field::truncate)) {
      return false;
    }
    if (field_ == Field::normalize) {
      to_.wish.normalize = value;
    }
    cuts_ = field_ == Field::truncate ? value : cuts_;
    return true;
  }
  bool number_unsigned(json::number_unsigned_t value) override {
    if (!in_request() || field_ != Field::dimensions || value == 0 ||
        value > std::numeric_limits<std::int32_t>::max()) {
      return false;
    }
    to_.wish.dimensions = static_cast<std::int64_t>(value);
    return true;
  }
  bool string(std::string& text) override {
    if (field_ == Field::input) {
      to_.texts.push_back(std::move(text));
      return !to_.texts.back().empty();
    }
    return in_request() && put(text);
  }
  bool start_object(std::size_t /*size*/) override { return depth_++ == 0; }
  bool key(std::string& name) override {
    const auto* const found = std::ranges::find(names_, name, &Names::value_type::first);
    if (found == names_.end() || std::ranges::find(seen_, found->second) != seen_.end()) {
      return false;
    }
    field_ = found->second;
    seen_.push_back(field_);
    return true;
  }
  bool start_array(std::size_t /*size*/) override { return in_request() && field_ == Field::input && depth_++ == 1; }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool end_object() override {
    to_.wish.cut = !cuts_ ? VectorWish::Cut::none : left_ ? VectorWish::Cut::left : VectorWish::Cut::right;
    return !to_.texts.empty();
  }
  bool number_integer(json::number_integer_t /*value*/) override { return false; }
  bool number_float(json::number_float_t /*value*/, const std::string& /*token*/) override { return false; }
  bool binary(json::binary_t& /*value*/) override { return false; }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/, const json::exception& /*error*/) override {
    return false;
  }

 private:
  bool in_request() const noexcept { return depth_ == 1 && !seen_.empty(); }

  bool put(std::string& text) {
    switch (field_) {
      case Field::model:
        to_.wish.model = std::move(text);
        return true;
      case Field::prompt:
        to_.wish.prompt = std::move(text);
        return true;
      case Field::user:
        return true;
      case Field::coding:
        to_.wish.base64 = text == "base64";
        return to_.wish.base64 || text == "float";
      case Field::side:
        left_ = text == "left" || text == "Left";
        return left_ || text == "right" || text == "Right";
      default:
        return false;
    }
  }

  const Names& names_;
  AskedVectors& to_;
  std::vector<Field> seen_;
  Field field_ = Field::user;
  std::size_t depth_ = 0;
  bool cuts_ = true;
  bool left_ = false;
};

const Names* names_of(std::string_view path) {
  if (path == "/v1/embeddings" || path == "/embeddings") {
    return &of_openai;
  }
  return path == "/embed" || path == "/" ? &of_tei : nullptr;
}

// A byte of JSON takes at most so many bytes of memory in Python, as texts and tokens.
constexpr std::size_t bytes_of_byte = 4;

}  // namespace

bool reserve_texts(Call& call, std::size_t answer) { return call.reserve(bytes_of_byte * call.body.size() + answer); }

std::optional<AskedVectors> read_vectors(const Call& call) {
  const Names* const names = names_of(call.path);
  if (names == nullptr || call.protocol != Protocol::http || call.method != "POST" || call.body.size() > most_bytes ||
      find(call.headers, "content-encoding") != nullptr) {
    return std::nullopt;
  }
  AskedVectors asked;
  asked.wish.path = call.path;
  Reader reader(*names, asked);
  const std::string_view text = call.body.text();
  return json::sax_parse(text, &reader) ? std::optional(std::move(asked)) : std::nullopt;
}

}  // namespace ortmulti::serve
