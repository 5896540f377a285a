#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/non_copyable.hpp"
#include "core/base/text.hpp"
#include "core/pool/request_timing.hpp"
#include "core/serve/admission.hpp"
#include "core/serve/buffer.hpp"

namespace ortmulti::serve {

/// Names are in lower case.
using Headers = std::vector<std::pair<std::string, std::string>>;

/// The first value of this name; null: there is none.
inline const std::string* find(const Headers& headers, std::string_view name) {
  const auto found = std::ranges::find(headers, name, &Headers::value_type::first);
  return found == headers.end() ? nullptr : &found->second;
}

/// The number that the first value of this name is; none: it is no number, or there is none.
inline std::optional<std::size_t> number_in(const Headers& headers, std::string_view name) {
  const std::string* const value = find(headers, name);
  return value == nullptr ? std::nullopt : whole_number<std::size_t>(*value);
}

enum class Protocol : std::uint8_t { http, grpc };

/// gRPC's codes, by their numbers.
enum class GrpcStatus : std::uint8_t {
  ok = 0,
  cancelled = 1,
  unknown = 2,
  invalid_argument = 3,
  deadline_exceeded = 4,
  not_found = 5,
  permission_denied = 7,
  resource_exhausted = 8,
  unimplemented = 12,
  internal = 13,
  unavailable = 14,
  unauthenticated = 16,
};
/// 400, 401, 403, 404, 413, 429, 499, 501, 503, 504 as gRPC says it; internal for others.
GrpcStatus to_grpc(int http_status) noexcept;

/// Part of a body to send: memory, and whose it is.
struct Piece {
  std::string_view bytes;
  std::shared_ptr<const void> owner;
};
Piece piece_of(std::string text);

/// The answer to a call.
struct Reply {
  int status = 200;  ///< HTTP's; gRPC's is to_grpc() of it, ok for 200.
  Headers headers;   ///< Beside content-length, which the connection adds; gRPC has none of them.
  std::vector<Piece>
      body;             ///< Of gRPC: one message, without the five bytes before it. None where the status is not 200.
  std::string message;  ///< Of gRPC where the status is not 200, UTF-8.
  std::size_t size() const noexcept {
    std::size_t size = 0;
    for (const Piece& piece : body) {
      size += piece.bytes.size();
    }
    return size;
  }
};
/// For HTTP an error in the form that clients of this path read: OpenAI's, that of text-embeddings-inference, or
/// {"error": text}; for gRPC the text.
Reply refusal(Protocol protocol, int status, std::string_view text, std::string_view path = {});

/// One request of a client: of HTTP, or a message of gRPC. It is filled in by a connection, in the thread of its loop,
/// and belongs to whoever answers it from Router::finish() on.
class Call : NonCopyable {
 public:
  Call(Protocol of, BufferPool& buffers, Admission& admission) : protocol(of), body(buffers), bytes(admission) {}
  virtual ~Call() = default;

  /// What its client calls it, for the log: the header x-request-id, or the id of infer. At most `most_of_id` bytes.
  std::string shown_id() const {
    const std::string* const header = find(headers, "x-request-id");
    return header == nullptr ? id : header->substr(0, most_of_id);
  }
  static constexpr std::size_t most_of_id = 100;

  const Protocol protocol;
  std::string method;  ///< "POST"; gRPC has no other.
  /// The path without the query, decoded: "/v2/models/a b/infer", "/inference.GRPCInferenceService/ModelInfer".
  std::string path;
  std::string query;  ///< Behind "?".
  Headers headers;
  Buffer body;                ///< Of gRPC: a message. Without transfer coding; content coding is as sent.
  bool compressed = false;    ///< Of gRPC: the message is, as its header grpc-encoding says: gzip or deflate.
  bool decompressed = false;  ///< The body, before it came here.
  bool streamed = false;      ///< Of a call of gRPC with a stream of requests, each of which is a Call.
  std::string peer;           ///< "127.0.0.1 51234": of the connection. Empty: unknown.
  std::string id;             ///< Of infer: the beginning of the request's id.
  bool asked = false;         ///< By Front::ask(): it has no connection.
  std::chrono::steady_clock::time_point since =
      std::chrono::steady_clock::now();  ///< When its headers were there; of a message of a stream, when it began.
  std::atomic<bool> gone{false};         ///< Nobody waits for its answer.

  /// The core's answer, which whoever answers last compresses and sends.
  struct Plain {
    Reply reply;
    std::string coding;      ///< "gzip" or "deflate".
    Admission::Bytes bytes;  ///< Of what is made of it.
  };
  std::optional<Plain> plain;

  // What the call takes of admission, which is freed with it.
  Admission::Bytes bytes;  ///< Of its body, or its answer.
  /// Counts so many bytes beside the body, in place of those from before. False: there is no memory for them.
  bool reserve(std::size_t beside) {
    const std::size_t all = body.resident() + beside;
    bytes.resize_down(all);
    return bytes.grow_to(all);
  }
  Admission::Place place;

  std::optional<RequestTiming> timing;  ///< Of its run, for whoever asked.

  // For its connection alone.
  std::uint64_t connection = 0;
  std::int64_t stream = 0;
};

/// What a connection asks about its calls. It is called in the thread of the connection's loop, and does not wait.
class Router {
 public:
  virtual ~Router() = default;
  /// The headers are there, the body is not. A reply: it is refused, the rest of its body is not wanted.
  virtual std::unique_ptr<Reply> begin(Call& call) = 0;
  /// All of it is there. Its answer comes by Connection::reply(), once, now or later. Of a loop: later, see
  /// Loop::reply().
  virtual void finish(std::shared_ptr<Call> call) = 0;
  /// The connection itself answered with this status: what it got is no call, or too large, or too slow.
  virtual void answered_itself(int /*status*/) noexcept {}
  /// The client has gone, or does not want the answer any more. reply() may still come and is ignored.
  virtual void gone(const std::shared_ptr<Call>& call) = 0;
};

}  // namespace ortmulti::serve
