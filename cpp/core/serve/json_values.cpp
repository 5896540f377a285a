#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/serve/json_events.hpp"
#include "core/serve/json_request.hpp"

namespace ortmulti::serve {
namespace {

using Kind = SentValue::Kind;

// Writes values as they come. Of several `inputs`, and of several `data`, the last one is written last.
class ValueReader : public JsonEvents<ValueReader> {
 public:
  explicit ValueReader(const std::vector<ValueWriter*>& writers) : writers_(writers) {}

  bool key(const std::string& name) {
    if (depth_ == 1) {
      in_inputs_ = name == "inputs";
    } else if (depth_ == 3 && in_inputs_) {
      at_data_ = name == "data";
    }
    return true;
  }
  bool string(const std::string& text) {
    if (into_ != nullptr) {
      into_->put(std::string_view(text));
    }
    return true;
  }
  bool number(auto number) {
    if (into_ != nullptr) {
      into_->put(number);
    }
    return true;
  }
  bool large_integer(double value, const std::string& token) {
    if (into_ != nullptr) {
      into_->put_large_integer(value, token);
    }
    return true;
  }
  bool value(const SentValue& sent) {
    if (into_ != nullptr && sent.is(Kind::boolean)) {
      into_->put(sent.truthy);
    }
    return true;
  }
  bool open(Kind kind) {
    if (in_inputs_ && depth_ == 1) {
      input_ = 0;
    } else if (in_inputs_ && depth_ == 2) {
      at_data_ = false;
      ++input_;
    } else if (in_inputs_ && depth_ == 3 && at_data_ && kind == Kind::list && input_ <= writers_.size()) {
      into_ = writers_[input_ - 1];
      if (into_ != nullptr) {
        into_->restart();
      }
    }
    ++depth_;
    if (into_ != nullptr && kind == Kind::list) {
      cursor().read_numbers([this](const JsonNumber& number) { put(number); });
    }
    return true;
  }
  bool close() {
    if (--depth_ == 3) {
      into_ = nullptr;
    }
    return true;
  }

 private:
  template <typename Number>
  void put_as(std::string_view text) {
    Number number{};
    std::from_chars(text.data(), text.data() + text.size(), number);  // which has its value: it is a plain number
    into_->put(number);
  }
  void put(const JsonNumber& number) {
    if (number.real) {
      put_as<double>(number.text);
    } else if (number.text.front() == '-') {
      put_as<std::int64_t>(number.text);
    } else {
      put_as<std::uint64_t>(number.text);
    }
  }

  const std::vector<ValueWriter*>& writers_;
  std::size_t depth_ = 0;
  std::size_t input_ = 0;  // counted from 1
  bool in_inputs_ = false;
  bool at_data_ = false;
  ValueWriter* into_ = nullptr;
};

}  // namespace

void read_json_values(std::string_view text, const std::vector<ValueWriter*>& writers) {
  ValueReader(writers).read(text);
}

}  // namespace ortmulti::serve
