#include "core/serve/call.hpp"

#include <algorithm>
#include <iterator>

#include "core/serve/datatypes.hpp"
#include "core/serve/route.hpp"

namespace ortmulti::serve {
namespace {

/// Returns the text as a string of JSON. Bytes that are no UTF-8 become U+FFFD.
std::string in_json(std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string json = "\"";
  while (!text.empty()) {
    const std::size_t size = utf8_character(text);
    const auto byte = static_cast<unsigned char>(text.front());
    if (size == 0) {
      json += "\\ufffd";
    } else if (byte == '"' || byte == '\\') {
      (json += '\\') += text.front();
    } else if (byte < 0x20U || byte == 0x7FU) {
      ((json += "\\u00") += digits[byte >> 4U]) += digits[byte & 15U];
    } else {
      json += text.substr(0, size);
    }
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return json += '"';
}

constexpr int first_of_server = 500;

std::string_view openai_type(int status) noexcept {
  switch (status) {
    case 401:
      return "authentication_error";
    case 429:
      return "rate_limit_error";
    default:
      return status < first_of_server ? "invalid_request_error" : "server_error";
  }
}

std::string_view tei_type(int status) noexcept {
  switch (status) {
    case 429:
      return "Overloaded";
    case 503:
      return "Unhealthy";
    default:
      return status < first_of_server ? "Validation" : "Backend";
  }
}

std::string error_json(int status, std::string_view text, std::string_view path) {
  constexpr std::string_view of_tei[] = {"embed", "rerank", "predict", "tokenize", "info"};
  const std::string_view named = without_slashes(path);
  if (named.starts_with("v1/") || named == "embeddings" || named == "v2/rerank") {
    return R"({"error":{"message":)" + in_json(text) + R"(,"type":")" + std::string(openai_type(status)) +
           R"(","param":null,"code":null}})";
  }
  const bool is_tei = path == "/" || std::ranges::find(of_tei, named) != std::end(of_tei);
  const std::string type = is_tei ? R"(,"error_type":")" + std::string(tei_type(status)) + '"' : "";
  return R"({"error":)" + in_json(text) + type + "}";
}

}  // namespace

GrpcStatus to_grpc(int http_status) noexcept {
  switch (http_status) {
    case 200:
      return GrpcStatus::ok;
    case 400:
      return GrpcStatus::invalid_argument;
    case 401:
      return GrpcStatus::unauthenticated;
    case 403:
      return GrpcStatus::permission_denied;
    case 404:
      return GrpcStatus::not_found;
    case 413:
    case 429:
      return GrpcStatus::resource_exhausted;
    case 499:
      return GrpcStatus::cancelled;
    case 501:
      return GrpcStatus::unimplemented;
    case 503:
      return GrpcStatus::unavailable;
    case 504:
      return GrpcStatus::deadline_exceeded;
    default:
      return GrpcStatus::internal;
  }
}

Piece piece_of(std::string text) {
  const auto owner = std::make_shared<const std::string>(std::move(text));
  return {*owner, owner};
}

Reply refusal(Protocol protocol, int status, std::string_view text, std::string_view path) {
  Reply reply{.status = status, .headers = {}, .body = {}, .message = {}};
  if (protocol == Protocol::grpc) {
    reply.message = text;
  } else {
    reply.headers.emplace_back("content-type", "application/json");
    reply.body.push_back(piece_of(error_json(status, text, path)));
  }
  return reply;
}

}  // namespace ortmulti::serve
