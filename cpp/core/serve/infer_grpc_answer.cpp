// Answers to requests over gRPC.
#include <utility>

#include "core/onnx/wire.hpp"
#include "core/serve/infer_grpc.hpp"
#include "core/serve/infer_grpc_fields.hpp"

namespace ortmulti::serve {
namespace {

// The protocol's numbers of fields.
namespace response_field {
constexpr std::uint64_t model = 1, version = 2, id = 3, parameters = 4, outputs = 5, raw = 6;
}
namespace stream_field {
constexpr std::uint64_t error = 1, response = 2;
}

// Adds a field, unless it has its default.
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
