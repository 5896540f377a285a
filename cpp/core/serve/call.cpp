#include "core/serve/call.hpp"

namespace ortmulti::serve {
namespace {

/// How many bytes the character has with which the text begins; 0: it is no UTF-8.
std::size_t character_size(std::string_view text) {
  const auto byte = [&](std::size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0U; };
  const auto continued = [&](std::size_t at) { return (byte(at) & 0xC0U) == 0x80U; };
  const unsigned first = byte(0);
  if (first < 0x80U) {
    return 1;
  }
  if (first >= 0xC2U && first < 0xE0U) {
    return continued(1) ? 2 : 0;
  }
  if (first >= 0xE0U && first < 0xF0U) {  // neither longer than needed nor a surrogate
    const bool right = (first != 0xE0U || byte(1) >= 0xA0U) && (first != 0xEDU || byte(1) < 0xA0U);
    return right && continued(1) && continued(2) ? 3 : 0;
  }
  if (first >= 0xF0U && first < 0xF5U) {  // up to U+10FFFF
    const bool right = (first != 0xF0U || byte(1) >= 0x90U) && (first != 0xF4U || byte(1) < 0x90U);
    return right && continued(1) && continued(2) && continued(3) ? 4 : 0;
  }
  return 0;
}

/// As a string of JSON; bytes that are no UTF-8 become U+FFFD.
std::string in_json(std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string json = "\"";
  while (!text.empty()) {
    const std::size_t size = character_size(text);
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

}  // namespace

GrpcStatus to_grpc(int http_status) noexcept {
  switch (http_status) {
    case 200:
      return GrpcStatus::ok;
    case 400:
      return GrpcStatus::invalid_argument;
    case 401:
      return GrpcStatus::unauthenticated;
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

Reply refusal(Protocol protocol, int status, std::string_view text) {
  Reply reply{.status = status, .headers = {}, .body = {}, .message = {}};
  if (protocol == Protocol::grpc) {
    reply.message = text;
  } else {
    reply.headers.emplace_back("content-type", "application/json");
    reply.body.push_back(piece_of("{\"error\":" + in_json(text) + "}"));
  }
  return reply;
}

}  // namespace ortmulti::serve
