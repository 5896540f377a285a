#pragma once

#include <onnxruntime_cxx_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ortmulti::serve {

bool is_utf8(std::string_view text) noexcept;
/// The bytes of the character with which a text begins that is not empty; 0: it begins with none.
std::size_t utf8_character(std::string_view text) noexcept;

/// A byte of a BOOL that is neither 0 nor 1 is undefined as a bool: it becomes 1.
void normalize_bools(std::span<std::byte> bytes) noexcept;

// FP16 and BF16, to the nearest and to even. A number that FP16 has not is infinity.
std::uint16_t to_half(double number) noexcept;
double from_half(std::uint16_t half) noexcept;
std::uint16_t to_bfloat(float number) noexcept;
float from_bfloat(std::uint16_t bfloat) noexcept;

/// A tensor that gets its values one by one. What does not fit is noted, and not written.
class ValueWriter {
 public:
  /// Over memory of so many elements.
  ValueWriter(ONNXTensorElementDataType type, std::byte* data, std::size_t count) noexcept
      : type_(type), data_(data), count_(count) {}
  /// A tensor of so many strings.
  ValueWriter(Ort::Value& strings, std::size_t count) noexcept
      : type_(ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING), strings_(&strings), count_(count) {}

  /// Begins with the first element again.
  void restart() {
    next_ = 0;
    problem_.clear();
  }
  void put(bool value);
  void put(std::int64_t value);
  void put(std::uint64_t value);
  void put(double value);
  void put(std::string_view text);
  /// An integer that has more than 64 bits, and about what it is.
  void put_large_integer(double value, std::string_view digits);
  void put_other() { fail("another type"); }

  /// Whether each element was written once.
  bool complete() const noexcept { return next_ == count_ && problem_.empty(); }
  /// What was wrong first: the value, and the datatype's range; empty: nothing.
  const std::string& problem() const noexcept { return problem_; }

 private:
  template <typename Element>
  void write(Element element) noexcept;
  template <typename Element>
  void write_integer(auto value);
  void put_integer(auto value);
  void write_float(double value);
  void fail(std::string problem);
  void fail_range(const std::string& value);

  ONNXTensorElementDataType type_;
  std::byte* data_ = nullptr;
  Ort::Value* strings_ = nullptr;
  std::size_t count_;
  std::size_t next_ = 0;
  std::string problem_;
};

/// Whether so many strings, each with its length in four bytes before it, are all that there is.
bool holds_strings(std::string_view bytes, std::uint64_t count) noexcept;
/// The first of such strings, which is taken off.
std::string_view take_string(std::string_view& bytes) noexcept;

// What JSON is written of.
void append_json_text(std::string& out, std::string_view text);
/// Appends a number as Python writes a float.
void append_json_number(std::string& out, double number);
void append_number(std::string& out, std::int64_t number);
/// The elements of a tensor without strings, with commas between them.
void append_json_elements(std::string& out, ONNXTensorElementDataType type, const std::byte* data, std::size_t count);

}  // namespace ortmulti::serve
