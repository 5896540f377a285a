#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/source.hpp"

namespace ortmulti {

constexpr int onnx_int64 = 7;  ///< ONNX's TensorProto.DataType.

/// The bytes of a serialized model: in memory, or in a source that is read through a small window. A file that shrinks
/// meanwhile is an Error with ErrorKind::weights; a mapping of it would end the process.
class ModelBytes {
 public:
  /// Bytes in memory, which outlive this object.
  ModelBytes(const unsigned char* bytes, std::uint64_t size) : size_(size), window_(bytes), window_size_(size) {}
  explicit ModelBytes(std::string_view bytes)
      : ModelBytes(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()) {}
  /// A source, which outlives this object.
  explicit ModelBytes(const Source& source) : source_(&source), open_(source.open()), size_(source.size()) {}

  std::uint64_t size() const noexcept { return size_; }
  unsigned char at(std::uint64_t offset) {
    if (offset - window_begin_ >= window_size_) {
      move_window(offset, 1);
    }
    return window_[offset - window_begin_];
  }
  void append_to(std::string& out, std::uint64_t begin, std::uint64_t end);

 private:
  void move_window(std::uint64_t begin, std::uint64_t length);

  const Source* source_ = nullptr;
  std::shared_ptr<const InputFile> open_;  // for many reads
  std::uint64_t size_;
  const unsigned char* window_ = nullptr;
  std::uint64_t window_begin_ = 0;
  std::uint64_t window_size_ = 0;
  std::uint64_t next_size_ = 0;
  std::vector<unsigned char> buffer_;
};

/// Throws Error with ErrorKind::invalid_protobuf: "not an ONNX model: " and `what`.
[[noreturn]] void malformed_model(const char* what);

enum class Wire : unsigned { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

/// One field of a message of the protobuf wire format.
struct WireField {
  std::uint64_t number = 0;
  Wire wire = Wire::varint;
  std::uint64_t value = 0;      ///< Of a varint; 0 for the others.
  ModelBytes* model = nullptr;  ///< The model that the offsets below are of.
  std::uint64_t start = 0;      ///< Of its tag.
  std::uint64_t begin = 0;      ///< Of the bytes of Wire::bytes; empty for the others.
  std::uint64_t end = 0;        ///< The end of those bytes, and of every field.

  std::string text() const {
    std::string result;
    model->append_to(result, begin, end);
    return result;
  }
};

/// Reads a message field by field and never beyond its end; malformed_model for what is no message.
class WireMessage {
 public:
  explicit WireMessage(ModelBytes& model) : model_(model), at_(0), end_(model.size()) {}
  explicit WireMessage(const WireField& field) : model_(*field.model), at_(field.begin), end_(field.end) {}

  bool next(WireField& field);

  bool at_end() const noexcept { return at_ == end_; }

  std::uint64_t varint();

 private:
  void skip(std::uint64_t length);

  ModelBytes& model_;
  std::uint64_t at_;
  std::uint64_t end_;
};

/// Each integer of a repeated field, packed or one by one.
void for_integers(const WireField& field, const auto& call) {
  if (field.wire == Wire::varint) {
    call(field.value);
  } else if (field.wire == Wire::bytes) {
    for (WireMessage packed(field); !packed.at_end();) {
      call(packed.varint());
    }
  }
}
void add_integers(const WireField& field, std::vector<std::int64_t>& integers);

/// The text in a message's field of this number; empty if there is none.
std::string text_of(const WireField& message, std::uint64_t number);

/// A field of the wire format: a number's, and one with bytes.
std::string wire_field(std::uint64_t number, std::uint64_t value);
std::string wire_field(std::uint64_t number, std::string_view bytes);
/// What stands before the bytes of such a field.
std::string wire_header(std::uint64_t number, std::uint64_t size);

/// The messages of a model that contain graphs, and graphs' initializers.
enum class OnnxMessage { none, model, function, graph, node, attribute, initializer };

/// An operator's name: "MatMul", or with another domain than ONNX's own "com.microsoft:MatMulNBits".
std::string operator_name(const std::string& domain, const std::string& type);

/// Walks a model's messages depth first, in the order in which they lie in the file. The visitor has
///   bool enter(OnnxMessage, const WireField&)   before such a message; false leaves its content out
///   void leave(OnnxMessage)                     after one that was entered
///   void field(OnnxMessage, const WireField&)   for every other field, with the kind of message that it is a field of
template <typename Visitor>
class OnnxWalk {
 public:
  explicit OnnxWalk(Visitor& visitor) : visitor_(visitor) {}

  void model(ModelBytes& bytes) { fields(OnnxMessage::model, WireMessage(bytes), 0); }

 private:
  // Graphs within graphs; deeper nesting is an attack on the stack, not a model.
  static constexpr int max_depth = 64;

  struct Place {
    OnnxMessage parent;
    std::uint64_t number;
    OnnxMessage kind;
  };
  static constexpr std::array<Place, 9> places = {{{OnnxMessage::model, 7, OnnxMessage::graph},
                                                   {OnnxMessage::model, 25, OnnxMessage::function},
                                                   {OnnxMessage::function, 7, OnnxMessage::node},
                                                   {OnnxMessage::function, 11, OnnxMessage::attribute},
                                                   {OnnxMessage::graph, 1, OnnxMessage::node},
                                                   {OnnxMessage::graph, 5, OnnxMessage::initializer},
                                                   {OnnxMessage::node, 5, OnnxMessage::attribute},
                                                   {OnnxMessage::attribute, 6, OnnxMessage::graph},
                                                   {OnnxMessage::attribute, 11, OnnxMessage::graph}}};

  static OnnxMessage message_in(OnnxMessage parent, const WireField& field) {
    for (const Place& place : places) {
      if (field.wire == Wire::bytes && place.parent == parent && place.number == field.number) {
        return place.kind;
      }
    }
    return OnnxMessage::none;
  }

  void fields(OnnxMessage parent, WireMessage message, int depth) {
    if (depth > max_depth) {
      malformed_model("its graphs are nested too deeply");
    }
    for (WireField field; message.next(field);) {
      const OnnxMessage kind = message_in(parent, field);
      if (kind == OnnxMessage::none) {
        visitor_.field(parent, field);
      } else if (visitor_.enter(kind, field)) {
        fields(kind, WireMessage(field), depth + (kind == OnnxMessage::graph ? 1 : 0));
        visitor_.leave(kind);
      }
    }
  }

  Visitor& visitor_;
};

}  // namespace ortmulti
