#include "core/serve/infer_http.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "core/base/text.hpp"
#include "core/serve/json_request.hpp"
#include "core/serve/route.hpp"

namespace ortmulti::serve {
namespace {

using Kind = SentValue::Kind;

void check_object(const SentValue& value, const char* what) {
  if (!value.is(Kind::object)) {
    refuse(std::string(what) + " is a JSON object, not " + type_name(value.kind));
  }
}

// Missing parameters, null, 0 and the like count as an empty object.
void check_parameters(const SentValue& value, const char* what) {
  if (value.truthy) {
    check_object(value, what);
  }
}

void check_list(const SentValue& value, const std::string& what, std::size_t count, std::size_t most) {
  if (value.missing()) {
    refuse(what + " is missing, or null: give a list");
  }
  if (!value.is(Kind::list)) {
    refuse(what + " is a list, not " + type_name(value.kind));
  }
  if (count > most) {
    refuse(std::to_string(count) + " " + what + " were sent, and " + std::to_string(most) + " are allowed");
  }
}

// How many bytes of JSON there are.
std::size_t json_size(const Call& call) {
  const std::string* const header = find(call.headers, "inference-header-content-length");
  const std::size_t all = call.body.size();
  if (header == nullptr) {
    return all;
  }
  constexpr std::size_t most_digits = 19;
  const auto size = header->empty() || header->size() > most_digits ? std::nullopt : whole_number<std::size_t>(*header);
  if (!size || *size > all) {
    refuse("Inference-Header-Content-Length is 0 to " + std::to_string(all) + " for this body");
  }
  return *size;
}

AskedInput read_input(JsonRequest::Input& sent, std::span<std::byte>& binary) {
  check_object(sent.self, "an input");
  if (!sent.name.is(Kind::text) || !sent.datatype.is(Kind::text) || !sent.shape.is(Kind::list)) {
    refuse("an input has a 'name' and a 'datatype', which are strings, and a 'shape', which is a list");
  }
  check_parameters(sent.parameters, "an input's parameters");
  check_no_shared_memory(sent.shared_memory);
  AskedInput input;
  input.name = std::move(sent.name.text);
  input.datatype = std::move(sent.datatype.text);
  input.shape = std::move(sent.sizes);
  const SentValue& size = sent.binary_data_size;
  if (size.missing()) {
    if (sent.data.missing()) {
      refuse("the input '" + shortened(input.name, most_name) +
             "' has neither 'data' nor the parameter 'binary_data_size'");
    }
    input.form = AskedInput::Form::json;
    input.values = sent.values;
    input.values.list = sent.data.is(Kind::list);
    return input;
  }
  if (!size.is(Kind::integer) || !size.integer || *size.integer < 0 ||
      static_cast<std::uint64_t>(*size.integer) > binary.size()) {
    refuse("the input '" + shortened(input.name, most_name) + "' has binary_data_size " + shortened(repr(size), 30) +
           ", and " + std::to_string(binary.size()) + " bytes are left");
  }
  input.binary = binary.first(static_cast<std::size_t>(*size.integer));
  binary = binary.subspan(input.binary.size());
  return input;
}

AskedOutput read_output(JsonRequest::Output& sent) {
  check_object(sent.self, "an output");
  if (!sent.name.is(Kind::text)) {
    refuse("an output has a 'name', which is a string");
  }
  check_parameters(sent.parameters, "an output's parameters");
  check_no_shared_memory(sent.shared_memory);
  check_no_classification(sent.classification);
  const bool said = sent.binary_data.is(Kind::boolean);
  return {std::move(sent.name.text), said ? std::optional(sent.binary_data.truthy) : std::nullopt};
}

void append_json_strings(std::string& out, const Answer& answer) {
  std::string_view left = answer.bytes;
  for (std::size_t i = 0; i < answer.count; ++i) {
    const std::string_view text = take_string(left);
    if (!is_utf8(text)) {
      throw Error(ErrorKind::fail, "output '" + answer.declared->name + "' has a string that is not UTF-8");
    }
    out += i == 0 ? "" : ",";
    append_json_text(out, text);
  }
}

void append_output(std::string& out, const Answer& answer, bool binary) {
  out += R"({"name":)";
  append_json_text(out, answer.declared->name);
  out += R"(,"datatype":")";
  out += answer.declared->datatype;
  out += R"(","shape":[)";
  for (std::size_t i = 0; i < answer.shape.size(); ++i) {
    out += i == 0 ? "" : ",";
    append_number(out, answer.shape[i]);
  }
  if (binary) {
    out += R"(],"parameters":{"binary_data_size":)";
    append_number(out, static_cast<std::int64_t>(answer.bytes.size()));
    out += "}}";
    return;
  }
  out += R"(],"data":[)";
  if (answer.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
    append_json_strings(out, answer);
  } else {
    append_json_elements(out, answer.type, reinterpret_cast<const std::byte*>(answer.bytes.data()), answer.count);
  }
  out += "]}";
}

// About what the elements take as JSON, so that no memory is taken beyond what the server has for its clients.
std::size_t about_json_bytes(const InferRequest& request, const std::vector<Answer>& answers) {
  constexpr std::size_t each = 24;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const bool strings = answers[i].type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING;
    bytes += request.wanted[i].binary ? 0 : strings ? 2 * answers[i].bytes.size() : each * answers[i].count;
  }
  return bytes;
}

}  // namespace

std::optional<InferPath> infer_path(std::string_view path) {
  while (path.starts_with('/')) {
    path.remove_prefix(1);
  }
  while (path.ends_with('/')) {
    path.remove_suffix(1);
  }
  if (take_path_part(path) != "v2" || take_path_part(path) != "models") {
    return std::nullopt;
  }
  InferPath found;
  found.model = take_path_part(path);
  if (path.starts_with("versions/")) {
    take_path_part(path);
    found.version = take_path_part(path);
  }
  return !found.model.empty() && path == "infer" ? std::optional(std::move(found)) : std::nullopt;
}

Asked read_http(const Call& call, const Limits& limits) {
  const std::size_t size = json_size(call);
  if (size > limits.json) {
    throw Refused(413, "the request has " + std::to_string(size) + " bytes of JSON, and " +
                           std::to_string(limits.json) +
                           " are allowed: send larger tensors in the binary form, behind the JSON");
  }
  Asked asked;
  asked.json = call.body.text().substr(0, size);
  std::span<std::byte> binary(call.body.data() + size, call.body.size() - size);
  JsonRequest sent = read_json(asked.json, limits.tensors);
  check_object(sent.self, "the request");
  check_parameters(sent.parameters, "parameters");
  check_list(sent.inputs, "inputs", sent.input_count, limits.tensors);
  asked.inputs.reserve(sent.input.size());
  for (JsonRequest::Input& input : sent.input) {
    asked.inputs.push_back(read_input(input, binary));
  }
  if (!binary.empty()) {
    refuse(std::to_string(binary.size()) + " bytes behind the inputs' binary data belong to none");
  }
  if (sent.outputs.truthy) {
    check_list(sent.outputs, "outputs", sent.output_count, limits.tensors);
  }
  asked.outputs.reserve(sent.output.size());
  for (JsonRequest::Output& output : sent.output) {
    asked.outputs.push_back(read_output(output));
  }
  if (!sent.id.is(Kind::text) && !sent.id.is(Kind::absent)) {
    refuse("the 'id' of a request is a string");
  }
  asked.id = std::move(sent.id.text);
  asked.binary_outputs = sent.binary_data_output.is(Kind::boolean) && sent.binary_data_output.truthy;
  asked.timeout = std::move(sent.timeout);
  asked.priority = std::move(sent.priority);
  return asked;
}

Reply write_http(const InferRequest& request, const std::vector<Answer>& answers) {
  Admission::Bytes& counted = request.call->bytes;
  const std::size_t before = counted.count() - request.text_bytes;
  const std::size_t json = about_json_bytes(request, answers);
  if (!counted.grow_to(before + json)) {
    return refused(*request.call, 503, "the server has no memory for the answer now: ask for it in the binary form");
  }
  BodyWriter body;
  std::string& head = body.text();
  head.reserve(json);  // as it grows, it would be there twice; what is not written takes no memory
  head += R"({"model_name":)";
  append_json_text(head, request.model->name);
  head += R"(,"model_version":)";
  append_json_text(head, request.model->version);
  head += R"(,"outputs":[)";
  bool has_binary = false;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    head += i == 0 ? "" : ",";
    append_output(head, answers[i], request.wanted[i].binary);
    has_binary = has_binary || request.wanted[i].binary;
  }
  head += ']';
  if (!request.id.empty()) {
    head += R"(,"id":)";
    append_json_text(head, request.id);
  }
  head += '}';
  counted.resize_down(before);
  if (json > 0) {
    request.model->text_size.note(request.input_bytes, head.size());
  }
  Reply reply;
  if (has_binary) {
    reply.headers = {{"content-type", "application/octet-stream"},
                     {"inference-header-content-length", std::to_string(head.size())}};
  } else {
    reply.headers = {{"content-type", "application/json"}};
  }
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (request.wanted[i].binary) {
      body.add(answers[i].bytes, answers[i].owner);
    }
  }
  reply.body = body.take();
  return reply;
}

}  // namespace ortmulti::serve
