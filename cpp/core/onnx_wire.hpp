#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ortmulti {

/// Throws Error with ErrorKind::invalid_protobuf: "not an ONNX model: " and `what`.
[[noreturn]] void malformed_model(const char* what);

enum class Wire : unsigned { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

/// One field of a message of the protobuf wire format.
struct WireField {
  std::uint64_t number = 0;
  Wire wire = Wire::varint;
  std::uint64_t value = 0;               ///< Of a varint; 0 for the others.
  const unsigned char* start = nullptr;  ///< Where its tag begins.
  const unsigned char* begin = nullptr;  ///< Of the bytes of Wire::bytes; empty for the others.
  const unsigned char* end = nullptr;    ///< Where those bytes, and with them every field, end.

  std::string_view text() const {
    return {reinterpret_cast<const char*>(begin), static_cast<std::size_t>(end - begin)};
  }
};

/// Reads a message field by field and never beyond its end; malformed_model for what is no message.
class WireMessage {
 public:
  WireMessage(const unsigned char* begin, const unsigned char* end) : at_(begin), end_(end) {}

  /// Reads the next field; false at the end.
  bool next(WireField& field);

  bool at_end() const noexcept { return at_ == end_; }

  std::uint64_t varint();

 private:
  void skip(std::uint64_t length);

  const unsigned char* at_;
  const unsigned char* end_;
};

/// The messages of a model that contain graphs, and graphs' initializers.
enum class OnnxMessage { none, model, function, graph, node, attribute, initializer };

/// Walks a model's messages depth first, in the order in which they lie in the file. The visitor has
///   bool enter(OnnxMessage, const WireField&)   before such a message; false leaves its content out
///   void leave(OnnxMessage)                     after one that was entered
///   void field(OnnxMessage, const WireField&)   for every other field, with the kind of message that it is a field of
template <typename Visitor>
class OnnxWalk {
 public:
  explicit OnnxWalk(Visitor& visitor) : visitor_(visitor) {}

  void model(const unsigned char* begin, std::size_t size) { fields(OnnxMessage::model, begin, begin + size, 0); }

 private:
  // Graphs within graphs; deeper nesting is an attack on the stack, not a model.
  static constexpr int max_depth = 64;

  // Which kind of message a field holds.
  static OnnxMessage kind_of(OnnxMessage parent, const WireField& field) {
    if (field.wire == Wire::bytes) {
      switch (parent) {
        case OnnxMessage::model:
          return field.number == 7    ? OnnxMessage::graph
                 : field.number == 25 ? OnnxMessage::function
                                      : OnnxMessage::none;
        case OnnxMessage::function:
          return field.number == 7    ? OnnxMessage::node
                 : field.number == 11 ? OnnxMessage::attribute
                                      : OnnxMessage::none;
        case OnnxMessage::graph:
          return field.number == 1   ? OnnxMessage::node
                 : field.number == 5 ? OnnxMessage::initializer
                                     : OnnxMessage::none;
        case OnnxMessage::node:
          return field.number == 5 ? OnnxMessage::attribute : OnnxMessage::none;
        case OnnxMessage::attribute:
          return field.number == 6 || field.number == 11 ? OnnxMessage::graph : OnnxMessage::none;
        case OnnxMessage::initializer:
        case OnnxMessage::none:
          break;
      }
    }
    return OnnxMessage::none;
  }

  void fields(OnnxMessage parent, const unsigned char* begin, const unsigned char* end, int depth) {
    if (depth > max_depth) {
      malformed_model("its graphs are nested too deeply");
    }
    WireMessage message(begin, end);
    for (WireField field; message.next(field);) {
      const OnnxMessage kind = kind_of(parent, field);
      if (kind == OnnxMessage::none) {
        visitor_.field(parent, field);
      } else if (visitor_.enter(kind, field)) {
        fields(kind, field.begin, field.end, depth + (kind == OnnxMessage::graph ? 1 : 0));
        visitor_.leave(kind);
      }
    }
  }

  Visitor& visitor_;
};

}  // namespace ortmulti
