#include "core/serve/infer_grpc.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "core/base/error.hpp"
#include "core/onnx/wire.hpp"
#include "core/serve/infer_grpc_fields.hpp"

namespace ortmulti::serve {
namespace {

using Kind = SentValue::Kind;

// The protocol's numbers of fields.
namespace request_field {
constexpr std::uint64_t model = 1, version = 2, id = 3, parameters = 4, inputs = 5, outputs = 6, raw = 7;
}

std::string text_in(std::string_view message, const WireField& field) {
  const std::string_view text = bytes_in(message, field);
  if (!is_utf8(text)) {
    malformed_request();
  }
  return std::string(text);
}

template <typename Number>
Number number_in(std::string_view message, const WireField& field) {
  Number number{};
  std::memcpy(&number, message.data() + field.end - sizeof(Number), sizeof(Number));
  return number;
}

// Reads an InferParameter, whose last field counts.
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

// Reads an entry of a map of parameters. Returns its key, and its value if the server reads this parameter.
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
      for_integers(one, [&input](std::uint64_t size) { input.shape.add(static_cast<std::int64_t>(size)); });
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

}  // namespace

GrpcRequest read_grpc(std::string_view message, std::size_t most_tensors) {
  GrpcRequest request;
  ModelBytes bytes(message);
  WireMessage fields(bytes);
  for (WireField field; fields.next(field);) {
    // Those that are read are all texts and messages.
    if (field.wire == Wire::bytes) {
      read_field(message, field, most_tensors, request);
    }
  }
  return request;
}

std::size_t raw_bytes(std::string_view message) {
  constexpr int most_fields = 4096;
  std::size_t binary = 0;
  try {
    ModelBytes bytes(message);
    WireMessage fields(bytes);
    WireField field;
    for (int i = 0; i < most_fields && fields.next(field); ++i) {
      binary += field.number == request_field::raw ? field.end - field.begin : 0;
    }
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): read_grpc() says it
  }
  return binary;
}

std::optional<std::size_t> raw_begin(std::string_view beginning) {
  WireField field;
  const auto found = [&] { return field.number == request_field::raw && field.wire == Wire::bytes && field.begin > 0; };
  try {
    ModelBytes bytes(beginning);
    for (WireMessage fields(bytes); !found() && fields.next(field);) {
    }
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the field is cut off
  }
  return found() ? std::optional(static_cast<std::size_t>(field.begin)) : std::nullopt;
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
    if (!raw && !has_contents(sent.datatype)) {
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

}  // namespace ortmulti::serve
