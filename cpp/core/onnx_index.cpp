#include "core/onnx_index.hpp"

#include <array>
#include <charconv>
#include <limits>
#include <string_view>
#include <utility>

#include "core/error.hpp"

namespace ortmulti {
namespace {

// Sub-graphs within sub-graphs; deeper nesting is an attack on the stack, not a model.
constexpr int max_depth = 64;

[[noreturn]] void malformed(const char* what) {
  throw Error(ErrorKind::invalid_protobuf, std::string("not an ONNX model: ") + what);
}

enum class Wire : unsigned { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

// One field of a message of the protobuf wire format.
struct Field {
  std::uint64_t number = 0;
  Wire wire = Wire::varint;
  std::uint64_t value = 0;               // of a varint
  const unsigned char* begin = nullptr;  // of bytes
  const unsigned char* end = nullptr;

  std::string_view text() const {
    return {reinterpret_cast<const char*>(begin), static_cast<std::size_t>(end - begin)};
  }
};

class Message {
 public:
  Message(const unsigned char* begin, const unsigned char* end) : at_(begin), end_(end) {}

  // Reads the next field; false at the end.
  bool next(Field& field) {
    if (at_ == end_) {
      return false;
    }
    const std::uint64_t tag = varint();
    field.number = tag >> 3U;
    if (field.number == 0) {
      malformed("a field has the number 0");
    }
    field.wire = static_cast<Wire>(tag & 7U);
    switch (field.wire) {
      case Wire::varint:
        field.value = varint();
        return true;
      case Wire::fixed64:
        skip(8);
        return true;
      case Wire::fixed32:
        skip(4);
        return true;
      case Wire::bytes: {
        const std::uint64_t length = varint();
        field.begin = at_;
        skip(length);
        field.end = at_;
        return true;
      }
    }
    malformed("a field has an unknown wire type");
  }

  bool at_end() const noexcept { return at_ == end_; }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
      if (at_ == end_) {
        malformed("it ends within a number");
      }
      const unsigned char byte = *at_++;
      if (shift < 64) {
        value |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
      }
      if ((byte & 0x80U) == 0) {
        return value;
      }
    }
    malformed("a number is too long");
  }

 private:
  void skip(std::uint64_t length) {
    if (length > static_cast<std::uint64_t>(end_ - at_)) {
      malformed("a field is longer than what is left");
    }
    at_ += length;
  }

  const unsigned char* at_;
  const unsigned char* end_;
};

std::uint64_t parse_size(std::string_view text, const char* what) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    malformed(what);
  }
  return value;
}

// Bytes that a dense tensor of this type and shape takes; the largest number where that overflows.
std::uint64_t dense_bytes(int data_type, const std::vector<std::int64_t>& shape) {
  constexpr std::uint64_t too_many = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t count = 1;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0) {
      malformed("an initializer has a negative dimension");
    }
    if (__builtin_mul_overflow(count, static_cast<std::uint64_t>(dimension), &count)) {
      return too_many;
    }
  }
  std::uint64_t bits = 0;
  return __builtin_mul_overflow(count, element_bits(data_type), &bits) || bits > too_many - 7 ? too_many
                                                                                              : (bits + 7) / 8;
}

class Indexer {
 public:
  Indexer(const unsigned char* model, std::size_t size) : model_(model), end_(model + size) {}

  std::vector<Initializer> index() {
    Message message(model_, end_);
    for (Field field; message.next(field);) {
      if (field.wire != Wire::bytes) {
        continue;
      }
      if (field.number == 7) {  // ModelProto.graph
        graph(field, 0);
      } else if (field.number == 25) {  // ModelProto.functions
        function(field);
      }
    }
    return std::move(found_);
  }

 private:
  void graph(const Field& parent, int depth) {
    if (depth > max_depth) {
      malformed("its graphs are nested too deeply");
    }
    const std::size_t number = depth == 0 ? 0 : ++sub_graphs_;
    Message message(parent.begin, parent.end);
    for (Field field; message.next(field);) {
      if (field.wire != Wire::bytes) {
        continue;
      }
      if (field.number == 1) {  // GraphProto.node
        node(field, depth);
      } else if (field.number == 5) {  // GraphProto.initializer
        found_.push_back(tensor(field, number));
      }
    }
  }

  void function(const Field& parent) {
    Message message(parent.begin, parent.end);
    for (Field field; message.next(field);) {
      if (field.wire == Wire::bytes && field.number == 7) {  // FunctionProto.node
        node(field, 1);
      }
    }
  }

  void node(const Field& parent, int depth) {
    Message message(parent.begin, parent.end);
    for (Field field; message.next(field);) {
      if (field.wire == Wire::bytes && field.number == 5) {  // NodeProto.attribute
        attribute(field, depth);
      }
    }
  }

  void attribute(const Field& parent, int depth) {
    Message message(parent.begin, parent.end);
    for (Field field; message.next(field);) {
      if (field.wire == Wire::bytes && (field.number == 6 || field.number == 11)) {  // AttributeProto.g, .graphs
        graph(field, depth + 1);
      }
    }
  }

  Initializer tensor(const Field& parent, std::size_t graph) const {
    Initializer result;
    result.graph = graph;
    bool external = false;
    bool sized = false;
    Message message(parent.begin, parent.end);
    for (Field field; message.next(field);) {
      switch (field.number) {
        case 1:  // TensorProto.dims, packed or one by one
          dimensions(field, result.shape);
          break;
        case 2:  // data_type
          result.data_type = static_cast<int>(field.value);
          break;
        case 8:  // name
          if (field.wire == Wire::bytes) {
            result.name = field.text();
          }
          break;
        case 9:  // raw_data
          if (field.wire == Wire::bytes) {
            result.storage = Storage::inline_bytes;
            result.offset = static_cast<std::uint64_t>(field.begin - model_);
            result.length = static_cast<std::uint64_t>(field.end - field.begin);
            sized = true;
          }
          break;
        case 13:  // external_data
          if (field.wire == Wire::bytes) {
            sized = external_entry(field, result) || sized;
          }
          break;
        case 14:  // data_location: 1 is EXTERNAL
          external = field.value == 1;
          break;
        default:
          break;
      }
    }
    if (external) {
      result.storage = Storage::external;
    }
    if (!sized) {
      result.length = dense_bytes(result.data_type, result.shape);
    }
    return result;
  }

  static void dimensions(const Field& field, std::vector<std::int64_t>& shape) {
    if (field.wire == Wire::varint) {
      shape.push_back(static_cast<std::int64_t>(field.value));
    } else if (field.wire == Wire::bytes) {
      for (Message packed(field.begin, field.end); !packed.at_end();) {
        shape.push_back(static_cast<std::int64_t>(packed.varint()));
      }
    }
  }

  // Reads one StringStringEntryProto; true for the length.
  static bool external_entry(const Field& parent, Initializer& result) {
    std::string_view key;
    std::string_view value;
    Message message(parent.begin, parent.end);
    for (Field field; message.next(field);) {
      if (field.wire == Wire::bytes && field.number == 1) {
        key = field.text();
      } else if (field.wire == Wire::bytes && field.number == 2) {
        value = field.text();
      }
    }
    if (key == "location") {
      result.location = value;
    } else if (key == "offset") {
      result.offset = parse_size(value, "the offset of external data is no number");
    } else if (key == "length") {
      result.length = parse_size(value, "the length of external data is no number");
      return true;
    }
    return false;
  }

  const unsigned char* model_;
  const unsigned char* end_;
  std::size_t sub_graphs_ = 0;
  std::vector<Initializer> found_;
};

}  // namespace

std::vector<Initializer> index_model(const unsigned char* model, std::size_t size) {
  return Indexer(model, size).index();
}

unsigned element_bits(int data_type) noexcept {
  // By TensorProto.DataType: undefined, float, uint8, int8, uint16, int16, int32, int64, string, bool, float16, double,
  // uint32, uint64, complex64, complex128, bfloat16, four of float8, uint4, int4, float4e2m1, float8e8m0, uint2, int2.
  constexpr std::array<unsigned, 27> bits = {0,  32,  8,  8, 16, 16, 32, 64, 0, 8, 16, 64, 32, 64,
                                             64, 128, 16, 8, 8,  8,  8,  4,  4, 4, 8,  2,  2};
  const auto index = static_cast<std::size_t>(data_type);
  return data_type >= 0 && index < bits.size() ? bits[index] : 0;
}

std::uint64_t total_bytes(const std::vector<Initializer>& initializers) noexcept {
  std::uint64_t total = 0;
  for (const Initializer& initializer : initializers) {
    if (__builtin_add_overflow(total, initializer.length, &total)) {
      return std::numeric_limits<std::uint64_t>::max();
    }
  }
  return total;
}

}  // namespace ortmulti
