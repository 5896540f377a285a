#include "core/serve/route.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/text.hpp"
#include "core/onnx/wire.hpp"
#include "core/serve/infer_grpc.hpp"

namespace ortmulti::serve {
namespace {

constexpr std::string_view service = "inference.GRPCInferenceService";
constexpr std::string_view health_service = "grpc.health.v1.Health";
constexpr std::string_view stream_path = "/inference.GRPCInferenceService/ModelStreamInfer";

struct Method {
  std::string_view name;
  Route route;
};
constexpr Method methods[] = {
    {"ModelInfer", Route::infer},      {"ModelStreamInfer", Route::infer},    {"ServerLive", Route::live},
    {"ServerReady", Route::ready},     {"ModelReady", Route::model_ready},    {"ServerMetadata", Route::other},
    {"ModelMetadata", Route::other},   {"ModelConfig", Route::other},         {"ModelStatistics", Route::other},
    {"RepositoryIndex", Route::other}, {"RepositoryModelLoad", Route::other}, {"RepositoryModelUnload", Route::other},
};

// Decoded: a model's name has no slash.
Route http_route(const Call& call) {
  std::string_view path = without_slashes(call.path);
  if (path == "v2/health/live") {
    return Route::live;
  }
  if (path == "v2/health/ready" || path == "health") {
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
  if (!path.starts_with('/')) {
    return Route::unknown;
  }
  path.remove_prefix(1);
  const std::string_view named = take_path_part(path);
  if (named == health_service && path == "Check") {
    return Route::check;
  }
  const auto* const method = std::ranges::find(methods, path, &Method::name);
  return named == service && method != std::end(methods) ? method->route : Route::unknown;
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
  // Of text-embeddings-inference; the protocol's own path has the code that Triton's clients know.
  const int not_ready = without_slashes(call.path) == "health" ? 503 : 400;
  return ready ? json_reply(200, R"({"ready":true})") : json_reply(not_ready, R"({"ready":false})");
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
  try {
    ModelBytes bytes(request);
    WireMessage fields(bytes);
    for (WireField field; fields.next(field);) {
      asked = field.number == 1 ? request.substr(field.begin, field.end - field.begin) : asked;
    }
  } catch (const Error&) {
    return refusal(Protocol::grpc, 400, "the request is no HealthCheckRequest");
  }
  constexpr std::size_t most_quoted = 100;
  if (!asked.empty() && asked != service) {
    return refusal(Protocol::grpc, 404, "there is no service '" + std::string(asked.substr(0, most_quoted)) + "'");
  }
  enum : char { serving = 1, not_serving = 2 };
  return message(ready ? serving : not_serving);
}

}  // namespace

std::string_view without_slashes(std::string_view path) {
  const std::size_t first = path.find_first_not_of('/');
  return first == std::string_view::npos ? "" : path.substr(first, path.find_last_not_of('/') - first + 1);
}

std::string_view take_path_part(std::string_view& path) {
  const std::size_t slash = path.find('/');
  const std::string_view part = path.substr(0, slash);
  path.remove_prefix(slash == std::string_view::npos ? path.size() : slash + 1);
  return part;
}

Route route_of(const Call& call) { return call.protocol == Protocol::http ? http_route(call) : grpc_route(call.path); }

bool has_request_stream(std::string_view path) noexcept { return path == stream_path; }

Reply unknown_method(const Call& call) {
  constexpr std::size_t most_quoted = 200;
  return refusal(Protocol::grpc, 501,
                 "there is no method '" + call.path.substr(0, most_quoted) + "': the server has those of " +
                     std::string(service) + ", and " + std::string(health_service) + "/Check");
}

std::string_view bearer_token(std::string_view authorization) noexcept {
  constexpr std::string_view scheme = "bearer ";
  const bool is_bearer = lower_case(std::string(authorization.substr(0, scheme.size()))) == scheme;
  const std::size_t at = is_bearer ? authorization.find_first_not_of(' ', scheme.size()) : std::string_view::npos;
  return at == std::string_view::npos ? std::string_view() : authorization.substr(at);
}

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

std::size_t bytes_to_parse(const Call& call) {
  if (call.protocol == Protocol::http) {
    const auto json = number_in(call.headers, "inference-header-content-length");
    return json ? std::min(*json, call.body.size()) : call.body.size();
  }
  return call.body.size() - raw_bytes(call.body.text());
}

}  // namespace ortmulti::serve
