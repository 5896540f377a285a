// Reads inputs of a request over gRPC whose values are fields of the message instead of raw bytes.
#include <algorithm>
#include <cstring>
#include <iterator>

#include "core/onnx/wire.hpp"
#include "core/serve/infer_grpc.hpp"
#include "core/serve/infer_grpc_fields.hpp"

namespace ortmulti::serve {
namespace {

using Kind = SentValue::Kind;

// The field of InferTensorContents that has a datatype's values.
struct ContentsField {
  std::string_view datatype;
  std::uint64_t number;
  Wire wire;
  Kind kind;
  bool is_signed;
};
constexpr ContentsField contents_fields[] = {
    {"BOOL", 1, Wire::varint, Kind::boolean, false},   {"INT8", 2, Wire::varint, Kind::integer, true},
    {"INT16", 2, Wire::varint, Kind::integer, true},   {"INT32", 2, Wire::varint, Kind::integer, true},
    {"INT64", 3, Wire::varint, Kind::integer, true},   {"UINT8", 4, Wire::varint, Kind::integer, false},
    {"UINT16", 4, Wire::varint, Kind::integer, false}, {"UINT32", 4, Wire::varint, Kind::integer, false},
    {"UINT64", 5, Wire::varint, Kind::integer, false}, {"FP32", 6, Wire::fixed32, Kind::real, false},
    {"FP64", 7, Wire::fixed64, Kind::real, false},     {"BYTES", 8, Wire::bytes, Kind::text, false},
};

const ContentsField* contents_field(std::string_view datatype) {
  const auto* const found = std::ranges::find(contents_fields, datatype, &ContentsField::datatype);
  return found == std::end(contents_fields) ? nullptr : found;
}

// Calls `call` with each field of the contents that has the input's values.
void for_contents(const AskedInput& input, const ContentsField& wanted, const auto& call) {
  const std::string_view message(reinterpret_cast<const char*>(input.binary.data()), input.binary.size());
  ModelBytes bytes(message);
  WireMessage tensor(bytes);
  for (WireField field; tensor.next(field);) {
    if (field.number != tensor_field::contents || field.wire != Wire::bytes) {
      continue;
    }
    WireMessage contents(field);
    for (WireField one; contents.next(one);) {
      if (one.number == wanted.number) {
        call(message, one);
      }
    }
  }
}

void put_varint(const ContentsField& wanted, std::uint64_t value, ValueWriter& writer) {
  constexpr std::uint64_t int32_field = 2;
  constexpr std::uint64_t uint32_field = 4;
  if (wanted.kind == Kind::boolean) {
    writer.put(value != 0);
  } else if (wanted.number == int32_field) {
    writer.put(std::int64_t{static_cast<std::int32_t>(value)});
  } else if (wanted.number == uint32_field) {
    writer.put(std::uint64_t{static_cast<std::uint32_t>(value)});
  } else if (wanted.is_signed) {
    writer.put(static_cast<std::int64_t>(value));
  } else {
    writer.put(value);
  }
}

template <typename Number>
void put_fixed(std::string_view message, const WireField& field, ValueWriter& writer) {
  const bool packed = field.wire == Wire::bytes;
  std::uint64_t at = packed ? field.begin : field.end - sizeof(Number);
  for (; at < field.end; at += sizeof(Number)) {
    Number number{};
    std::memcpy(&number, message.data() + at, sizeof(Number));
    writer.put(static_cast<double>(number));
  }
}

}  // namespace

bool has_contents(std::string_view datatype) { return contents_field(datatype) != nullptr; }

SentValues count_contents(const AskedInput& input) {
  const ContentsField& wanted = *contents_field(input.datatype);
  SentValues values;
  values.kinds = SentValues::bit(wanted.kind);
  for_contents(input, wanted, [&](std::string_view /*message*/, const WireField& field) {
    if (wanted.kind == Kind::text) {
      values.count += field.wire == Wire::bytes ? 1 : 0;
      values.characters += field.end - field.begin;
    } else if (wanted.wire == Wire::varint) {
      for_integers(field, [&values](std::uint64_t /*value*/) { ++values.count; });
    } else {
      const std::size_t width = wanted.wire == Wire::fixed32 ? 4 : 8;
      if (field.wire == Wire::bytes && (field.end - field.begin) % width != 0) {
        malformed_request();
      }
      values.count += field.wire == Wire::bytes ? (field.end - field.begin) / width : field.wire == wanted.wire ? 1 : 0;
    }
  });
  return values;
}

void read_contents(const AskedInput& input, ValueWriter& writer) {
  const ContentsField& wanted = *contents_field(input.datatype);
  for_contents(input, wanted, [&](std::string_view message, const WireField& field) {
    if (field.wire != Wire::bytes && field.wire != wanted.wire) {
      return;
    }
    if (wanted.kind == Kind::text) {
      writer.put(bytes_in(message, field));
    } else if (wanted.wire == Wire::varint) {
      for_integers(field, [&](std::uint64_t value) { put_varint(wanted, value, writer); });
    } else if (wanted.wire == Wire::fixed32) {
      put_fixed<float>(message, field, writer);
    } else {
      put_fixed<double>(message, field, writer);
    }
  });
}

}  // namespace ortmulti::serve
