#include "core/serve/route.hpp"

#include <array>
#include <string>
#include <utility>

#include "core/base/text.hpp"

namespace ortmulti::serve {
namespace {

constexpr std::string_view service = "inference.GRPCInferenceService";
// More fields of a message than these are not skipped over one by one.
constexpr int most_fields = 4096;

std::string_view without_slashes(std::string_view path) {
  const std::size_t first = path.find_first_not_of('/');
  return first == std::string_view::npos ? "" : path.substr(first, path.find_last_not_of('/') - first + 1);
}

// As sent, percent signs and all: a name with a slash in it is one part here, and for whoever answers.
Route http_route(const Call& call) {
  std::string_view path = without_slashes(call.path);
  if (path == "v2/health/live") {
    return Route::live;
  }
  if (path == "v2/health/ready") {
    return Route::ready;
  }
  if (take_path_part(path) != "v2" || take_path_part(path) != "models" || take_path_part(path).empty()) {
    return Route::other;
  }
  constexpr std::string_view versions = "versions/";
  if (path.starts_with(versions)) {
    path.remove_prefix(versions.size());
    if (take_path_part(path).empty()) {
      return Route::other;
    }
  }
  if (path == "infer" && call.method == "POST") {
    return Route::infer;
  }
  return path == "ready" ? Route::model_ready : Route::other;
}

Route grpc_route(std::string_view path) {
  if (path == "/grpc.health.v1.Health/Check") {
    return Route::check;
  }
  if (!take_path_part(path).empty() || take_path_part(path) != service || path.empty()) {
    return Route::unknown;
  }
  if (path == "ModelInfer" || path == "ModelStreamInfer") {
    return Route::infer;
  }
  return path == "ServerLive"    ? Route::live
         : path == "ServerReady" ? Route::ready
         : path == "ModelReady"  ? Route::model_ready
                                 : Route::other;
}

// A field of a message in protobuf's wire format.
struct Field {
  std::uint64_t number = 0;
  std::string_view bytes;  // of one that has a length
};

std::optional<std::uint64_t> take_varint(std::string_view& message) noexcept {
  constexpr unsigned longest = 64;
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < longest && !message.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(message.front());
    message.remove_prefix(1);
    value |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
    if (byte < 0x80) {
      return value;
    }
  }
  return std::nullopt;
}

// None: it is no message.
std::optional<Field> take_field(std::string_view& message) noexcept {
  enum : unsigned { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };
  const auto tag = take_varint(message);
  if (!tag) {
    return std::nullopt;
  }
  Field field{*tag >> 3U, {}};
  const auto kind = static_cast<unsigned>(*tag & 7U);
  std::uint64_t length = kind == fixed64 ? 8 : 4;
  if (kind == varint || kind == bytes) {
    const auto value = take_varint(message);
    if (!value) {
      return std::nullopt;
    }
    length = kind == bytes ? *value : 0;
  } else if (kind != fixed64 && kind != fixed32) {
    return std::nullopt;
  }
  if (length > message.size()) {
    return std::nullopt;
  }
  field.bytes = message.substr(0, kind == bytes ? length : 0);
  message.remove_prefix(length);
  return field;
}

Reply json_reply(int status, const char* text) {
  Reply reply;
  reply.status = status;
  reply.headers.emplace_back("content-type", "application/json");
  reply.body.push_back(piece_of(text));
  return reply;
}

Reply http_health(const Call& call, Route route, bool ready) {
  if (call.method != "GET" && call.method != "HEAD") {
    constexpr std::size_t most_quoted = 20;
    Reply reply = refusal(Protocol::http, 405, "the method is GET, not " + call.method.substr(0, most_quoted));
    reply.headers.emplace_back("allow", "GET, HEAD");
    return reply;
  }
  if (route == Route::live) {
    return json_reply(200, R"({"live":true})");
  }
  return ready ? json_reply(200, R"({"ready":true})") : json_reply(400, R"({"ready":false})");
}

// A message with the number in its field 1.
Reply message(char number) {
  Reply reply;
  if (number != 0) {
    reply.body.push_back(piece_of({'\x08', number}));
  }
  return reply;
}

Reply check(std::string_view request, bool ready) {
  std::string_view asked;
  while (!request.empty()) {
    const auto field = take_field(request);
    if (!field) {
      return refusal(Protocol::grpc, 400, "the request is no HealthCheckRequest");
    }
    asked = field->number == 1 ? field->bytes : asked;
  }
  constexpr std::size_t most_quoted = 100;
  if (!asked.empty() && asked != service) {
    return refusal(Protocol::grpc, 404, "there is no service '" + std::string(asked.substr(0, most_quoted)) + "'");
  }
  enum : char { serving = 1, not_serving = 2 };
  return message(ready ? serving : not_serving);
}

}  // namespace

std::string_view take_path_part(std::string_view& path) {
  const std::size_t slash = path.find('/');
  const std::string_view part = path.substr(0, slash);
  path.remove_prefix(slash == std::string_view::npos ? path.size() : slash + 1);
  return part;
}

Route route_of(const Call& call) { return call.protocol == Protocol::http ? http_route(call) : grpc_route(call.path); }

bool same_secret(std::string_view given, std::string_view expected) noexcept {
  volatile unsigned char differences = given.size() == expected.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size() && !expected.empty(); ++i) {
    const unsigned one = static_cast<unsigned char>(given[i]);
    const unsigned other = static_cast<unsigned char>(expected[i % expected.size()]);
    differences = static_cast<unsigned char>(differences | (one ^ other));
  }
  return differences == 0;
}

Reply health(const Call& call, Route route, bool ready) {
  if (call.protocol == Protocol::http) {
    return http_health(call, route, ready);
  }
  return route == Route::check ? check(call.body.text(), ready) : message(route == Route::live || ready ? 1 : 0);
}

std::size_t bytes_to_parse(const Call& call) noexcept {
  if (call.protocol == Protocol::http) {
    const std::string* header = find(call.headers, "inference-header-content-length");
    const auto json = header == nullptr ? std::nullopt : whole_number<std::size_t>(*header);
    return json ? std::min(*json, call.body.size()) : call.body.size();
  }
  constexpr std::uint64_t raw_input_contents = 7;
  std::string_view message = call.body.text();
  std::size_t binary = 0;
  for (int i = 0; i < most_fields && !message.empty(); ++i) {
    const auto field = take_field(message);
    if (!field) {
      break;
    }
    binary += field->number == raw_input_contents ? field->bytes.size() : 0;
  }
  return call.body.size() - binary;
}

}  // namespace ortmulti::serve
