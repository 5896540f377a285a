#include "core/serve/infer_grpc.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "core/base/error.hpp"
#include "core/onnx/element_types.hpp"
#include "core/onnx/wire.hpp"

namespace ortmulti::serve {
namespace {

using Kind = SentValue::Kind;

// Numbers of fields, which are the protocol's.
namespace request_field {
constexpr std::uint64_t model = 1, version = 2, id = 3, parameters = 4, inputs = 5, outputs = 6, raw = 7;
}
namespace tensor_field {
constexpr std::uint64_t name = 1, datatype = 2, shape = 3, parameters = 4, contents = 5;
}
namespace response_field {
constexpr std::uint64_t model = 1, version = 2, id = 3, parameters = 4, outputs = 5, raw = 6;
}
namespace stream_field {
constexpr std::uint64_t error = 1, response = 2;
}

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

[[noreturn]] void malformed() { throw Error(ErrorKind::invalid_protobuf, "Exception deserializing request!"); }

ModelBytes bytes_of(std::string_view message) {
  return {reinterpret_cast<const unsigned char*>(message.data()), message.size()};
}

// The bytes of a field of this message.
std::string_view bytes_in(std::string_view message, const WireField& field) {
  return message.substr(field.begin, field.end - field.begin);
}

std::string text_in(std::string_view message, const WireField& field) {
  const std::string_view text = bytes_in(message, field);
  if (!is_utf8(text)) {
    malformed();
  }
  return std::string(text);
}

template <typename Number>
Number number_in(std::string_view message, const WireField& field) {
  Number number{};
  std::memcpy(&number, message.data() + field.end - sizeof(Number), sizeof(Number));
  return number;
}

// Each varint of a repeated field, packed or not.
void for_varints(const WireField& field, const auto& call) {
  if (field.wire == Wire::varint) {
    call(field.value);
  } else if (field.wire == Wire::bytes) {
    for (WireMessage packed(field); !packed.at_end();) {
      call(packed.varint());
    }
  }
}

// Of an InferParameter, whose last field counts.
SentValue read_parameter(std::string_view message, const WireField& field) {
  SentValue value;
  WireMessage parameter(field);
  for (WireField one; parameter.next(one);) {
    if (one.number == 1 && one.wire == Wire::varint) {
      value = {Kind::boolean, one.value != 0};
    } else if (one.number == 2 && one.wire == Wire::varint) {
      value = SentValue::of_integer(static_cast<std::int64_t>(one.value));
    } else if (one.number == 3 && one.wire == Wire::bytes) {
      value = {Kind::text, one.begin != one.end, std::nullopt, text_in(message, one)};
    } else if (one.number == 4 && one.wire == Wire::fixed64) {
      const auto number = number_in<double>(message, one);
      std::string text;
      append_json_number(text, number);
      value = {Kind::real, number != 0, std::nullopt, std::move(text)};
    } else if (one.number == 5 && one.wire == Wire::varint) {
      value = {Kind::integer, one.value != 0, std::nullopt, std::to_string(one.value)};
      if (std::in_range<std::int64_t>(one.value)) {
        value.integer = static_cast<std::int64_t>(one.value);
      }
    }
  }
  return value;
}

// Of an entry of a map of parameters: its key, and its value where the key is one of those that matter.
std::pair<std::string_view, SentValue> read_entry(std::string_view message, const WireField& field) {
  std::pair<std::string_view, SentValue> result;
  WireMessage entry(field);
  for (WireField one; entry.next(one);) {
    if (one.wire != Wire::bytes) {
      continue;
    }
    if (one.number == 1) {
      result.first = bytes_in(message, one);
    } else if (one.number == 2) {
      result.second = read_parameter(message, one);
    }
  }
  return result;
}

GrpcRequest::Input read_input(std::string_view message, const WireField& field) {
  GrpcRequest::Input input;
  input.message = bytes_in(message, field);
  WireMessage tensor(field);
  for (WireField one; tensor.next(one);) {
    if (one.number == tensor_field::shape) {
      for_varints(one, [&input](std::uint64_t size) { input.shape.add(static_cast<std::int64_t>(size)); });
    } else if (one.wire != Wire::bytes) {
      continue;  // of another type than the field has: as an unknown one
    } else if (one.number == tensor_field::name) {
      input.name = text_in(message, one);
    } else if (one.number == tensor_field::datatype) {
      input.datatype = text_in(message, one);
    } else if (one.number == tensor_field::parameters) {
      input.shared_memory = input.shared_memory || read_entry(message, one).first == "shared_memory_region";
    }
  }
  return input;
}

GrpcRequest::Output read_output(std::string_view message, const WireField& field) {
  GrpcRequest::Output output;
  WireMessage tensor(field);
  for (WireField one; tensor.next(one);) {
    if (one.wire != Wire::bytes) {
      continue;  // as above
    }
    if (one.number == 1) {
      output.name = text_in(message, one);
    } else if (one.number == 2) {
      auto [key, value] = read_entry(message, one);
      output.shared_memory = output.shared_memory || key == "shared_memory_region";
      if (key == "classification") {
        output.classification = std::move(value);
      }
    }
  }
  return output;
}

void read_field(std::string_view message, const WireField& field, std::size_t most, GrpcRequest& request) {
  switch (field.number) {
    case request_field::model:
      request.model = text_in(message, field);
      break;
    case request_field::version:
      request.version = text_in(message, field);
      break;
    case request_field::id:
      request.id = text_in(message, field);
      break;
    case request_field::parameters: {
      auto [key, value] = read_entry(message, field);
      if (key == "timeout" || key == "priority") {
        (key == "timeout" ? request.timeout : request.priority) = std::move(value);
      }
      break;
    }
    case request_field::inputs:
      if (++request.input_count <= most) {
        request.inputs.push_back(read_input(message, field));
      }
      break;
    case request_field::outputs:
      if (++request.output_count <= most) {
        request.outputs.push_back(read_output(message, field));
      }
      break;
    case request_field::raw:
      if (++request.raw_count <= most) {
        request.raw.push_back(bytes_in(message, field));
      }
      break;
    default:
      break;
  }
}

// Calls `call` with each field of the contents that has the input's values.
void for_contents(const AskedInput& input, const ContentsField& wanted, const auto& call) {
  const std::string_view message(reinterpret_cast<const char*>(input.binary.data()), input.binary.size());
  ModelBytes bytes = bytes_of(message);
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

// A field as it is written where it is not its default.
void add_text(std::string& out, std::uint64_t number, std::string_view text) {
  if (!text.empty()) {
    out += wire_header(number, text.size());
    out += text;
  }
}

std::string final_response() {
  static const auto& entry = *new std::string(  // NOLINT(cppcoreguidelines-owning-memory): leaked
      wire_field(response_field::parameters, wire_field(1, "triton_final_response") + wire_field(2, wire_field(1, 1))));
  return entry;
}

std::string described(const Answer& answer) {
  std::string tensor;
  add_text(tensor, tensor_field::name, answer.declared->name);
  add_text(tensor, tensor_field::datatype, answer.declared->datatype);
  if (!answer.shape.empty()) {
    std::string shape;
    for (const std::int64_t size : answer.shape) {
      // A field's value without the byte of its number.
      shape += std::string_view(wire_field(1, static_cast<std::uint64_t>(size))).substr(1);
    }
    add_text(tensor, tensor_field::shape, shape);
  }
  return tensor;
}

}  // namespace

GrpcRequest read_grpc(std::string_view message, std::size_t most_tensors) {
  GrpcRequest request;
  ModelBytes bytes = bytes_of(message);
  WireMessage fields(bytes);
  for (WireField field; fields.next(field);) {
    // Those that are read are all texts and messages.
    if (field.wire == Wire::bytes) {
      read_field(message, field, most_tensors, request);
    }
  }
  return request;
}

Asked check_grpc(GrpcRequest request, std::size_t most_tensors) {
  if (std::max(request.input_count, request.output_count) > most_tensors) {
    refuse(std::to_string(request.input_count) + " inputs and " + std::to_string(request.output_count) +
           " outputs: " + std::to_string(most_tensors) + " are allowed");
  }
  if (request.raw_count != 0 && request.raw_count != request.input_count) {
    refuse(std::to_string(request.raw_count) + " raw_input_contents were sent for " +
           std::to_string(request.input_count) + " inputs: one is needed for each");
  }
  Asked asked;
  asked.inputs.reserve(request.inputs.size());
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    GrpcRequest::Input& sent = request.inputs[i];
    check_no_shared_memory(sent.shared_memory);
    const bool raw = request.raw_count != 0;
    if (!raw && contents_field(sent.datatype) == nullptr) {
      refuse(repr(shortened(sent.datatype, 20)) + " of input '" + shortened(sent.name, most_name) +
             "' is sent in raw_input_contents");
    }
    AskedInput& input = asked.inputs.emplace_back();
    input.name = std::move(sent.name);
    input.datatype = std::move(sent.datatype);
    input.shape = std::move(sent.shape);
    input.form = raw ? AskedInput::Form::binary : AskedInput::Form::message;
    const std::string_view data = raw ? request.raw[i] : sent.message;
    // The body's, which may be written.
    auto* const begin = const_cast<char*>(data.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
    input.binary = {reinterpret_cast<std::byte*>(begin), data.size()};
  }
  asked.outputs.reserve(request.outputs.size());
  for (GrpcRequest::Output& output : request.outputs) {
    check_no_shared_memory(output.shared_memory);
    check_no_classification(output.classification);
    asked.outputs.push_back({std::move(output.name), true});
  }
  asked.binary_outputs = true;
  asked.id = std::move(request.id);
  asked.timeout = std::move(request.timeout);
  asked.priority = std::move(request.priority);
  return asked;
}

SentValues count_contents(const AskedInput& input) {
  const ContentsField& wanted = *contents_field(input.datatype);
  SentValues values;
  values.kinds = SentValues::bit(wanted.kind);
  for_contents(input, wanted, [&](std::string_view /*message*/, const WireField& field) {
    if (wanted.kind == Kind::text) {
      values.count += field.wire == Wire::bytes ? 1 : 0;
      values.characters += field.end - field.begin;
    } else if (wanted.wire == Wire::varint) {
      for_varints(field, [&values](std::uint64_t /*value*/) { ++values.count; });
    } else {
      const std::size_t width = wanted.wire == Wire::fixed32 ? 4 : 8;
      if (field.wire == Wire::bytes && (field.end - field.begin) % width != 0) {
        malformed();
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
      for_varints(field, [&](std::uint64_t value) { put_varint(wanted, value, writer); });
    } else if (wanted.wire == Wire::fixed32) {
      put_fixed<float>(message, field, writer);
    } else {
      put_fixed<double>(message, field, writer);
    }
  });
}

Reply write_grpc(const InferRequest& request, const std::vector<Answer>& answers) {
  std::string head;
  add_text(head, response_field::model, request.model->name);
  add_text(head, response_field::version, request.model->version);
  add_text(head, response_field::id, request.id);
  head += request.call->streamed ? final_response() : std::string();
  std::size_t size = 0;
  std::vector<std::string> before;  // each output's bytes
  before.reserve(answers.size());
  for (const Answer& answer : answers) {
    const std::string tensor = described(answer);
    head += wire_header(response_field::outputs, tensor.size());
    head += tensor;
    before.push_back(wire_header(response_field::raw, answer.bytes.size()));
    size += before.back().size() + answer.bytes.size();
  }
  BodyWriter body;
  if (request.call->streamed) {
    body.text() = wire_header(stream_field::response, head.size() + size);
  }
  body.text() += head;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    body.text() += before[i];
    body.add(answers[i].bytes, answers[i].owner);
  }
  Reply reply;
  reply.body = body.take();
  return reply;
}

Reply stream_error(std::string_view text, std::string_view id) {
  std::string response;
  add_text(response, response_field::id, id);
  response += final_response();
  Reply reply;
  std::string message;
  add_text(message, stream_field::error, text);
  add_text(message, stream_field::response, response);
  reply.body.push_back(piece_of(std::move(message)));
  return reply;
}

}  // namespace ortmulti::serve
