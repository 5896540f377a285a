#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ortmulti::serve {

/// Thrown for what a client asked wrongly: the answer that it gets.
struct Refused : std::exception {
  Refused(int of, std::string what) : status(of), text(std::move(what)) {}
  const char* what() const noexcept override { return text.c_str(); }

  int status;  ///< HTTP's.
  std::string text;
};
[[noreturn]] inline void refuse(std::string text) { throw Refused(400, std::move(text)); }

/// A value of JSON, or a parameter of gRPC, as far as it matters.
struct SentValue {
  enum class Kind : std::uint8_t { absent, null, boolean, integer, real, text, list, object };

  Kind kind = Kind::absent;
  bool truthy = false;                                 ///< As Python has it: neither empty nor zero.
  std::optional<std::int64_t> integer = std::nullopt;  ///< Where it is one that has 64 bits.
  std::string text = {};                               ///< What a string says, and a number as Python prints it.

  bool is(Kind other) const noexcept { return kind == other; }
  bool missing() const noexcept { return kind <= Kind::null; }
  static SentValue of_integer(std::int64_t value) { return {Kind::integer, value != 0, value, std::to_string(value)}; }
};
/// What it is in JSON: "a number".
const char* type_name(SentValue::Kind kind) noexcept;
/// A value for messages: as JSON has it, but texts as Python's repr() writes them, and a list or an object in short.
std::string repr(const SentValue& value);
std::string repr(std::string_view text);
/// At most so many characters of UTF-8.
std::string shortened(std::string_view text, std::size_t most);

/// The most characters of a name that messages repeat.
constexpr std::size_t most_name = 200;

// Throw Refused for what the server has not.
void check_no_shared_memory(bool asked);
void check_no_classification(const SentValue& wanted);

/// A tensor's shape as it was sent.
struct SentShape {
  static constexpr std::size_t max_dimensions = 64;

  std::vector<std::int64_t> sizes;                       ///< Those of the first dimensions; -1 for what is no size.
  std::size_t count = 0;                                 ///< Of dimensions.
  std::vector<std::pair<std::size_t, std::string>> odd;  ///< What is no integer: its index, and its text.

  void add(std::int64_t size) {
    if (count++ < max_dimensions) {
      sizes.push_back(size);
    }
  }
  /// "1,4"
  std::string text() const;
  /// The number of elements; nothing where 64 bits have it not.
  std::optional<std::uint64_t> elements() const noexcept;
  /// The same in digits, however many.
  std::string elements_text() const;
};

/// The values of an input that is sent as values, counted.
struct SentValues {
  bool list = true;     ///< Else they are no list.
  bool uneven = false;  ///< Lists and values side by side.
  std::size_t count = 0;
  std::size_t characters = 0;  ///< Of strings, in bytes.
  unsigned kinds = 0;          ///< A bit for each SentValue::Kind that occurs.

  void add(SentValue::Kind one) noexcept {
    ++count;
    kinds |= bit(one);
  }
  /// Whether there are none but these.
  bool only(unsigned wanted) const noexcept { return (kinds & ~wanted) == 0; }
  static constexpr unsigned bit(SentValue::Kind kind) noexcept { return 1U << static_cast<unsigned>(kind); }
};

/// An input as a client sent it. Its bytes lie in the body.
struct AskedInput {
  enum class Form : std::uint8_t { binary, json, message };

  std::string name;
  std::string datatype;
  SentShape shape;
  Form form = Form::binary;
  std::span<std::byte> binary;  ///< Its data; with Form::message, the message InferInputTensor.
  SentValues values;            ///< With Form::json.
};

struct AskedOutput {
  std::string name;
  std::optional<bool> binary;  ///< Whether it is to be binary; nothing: as the others.
};

/// A request of either protocol, before it was compared with the model.
struct Asked {
  std::string id;
  std::vector<AskedInput> inputs;
  std::vector<AskedOutput> outputs;  ///< None: all of the model's.
  bool binary_outputs = false;
  SentValue timeout;
  SentValue priority;
  std::string_view json;  ///< Where values of inputs lie.
};

}  // namespace ortmulti::serve
