#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/serve/connection.hpp"
#include "core/serve/http2_output.hpp"

namespace ortmulti::serve {

/// A message of gRPC as it arrives: five bytes, of which one says whether it is compressed and four how long it is, and
/// then the body of a call.
class GrpcMessage {
 public:
  /// Takes bytes up to the message's end, and removes them from `bytes`. A reply: the message is refused. Its memory is
  /// taken at once and counted as it is written, as HTTP's is: before, it takes no room in the machine's.
  std::optional<Reply> take(Call& call, std::string_view& bytes, const Limits& limits);
  bool complete() const noexcept { return prefix_size_ == prefix_.size() && rest_ == 0; }
  /// Whether nothing of the next message has arrived.
  bool empty() const noexcept { return prefix_size_ == 0; }
  void clear() noexcept { *this = {}; }

  /// The five bytes before a message that is sent.
  static std::array<char, 5> prefix(std::size_t length) noexcept;

 private:
  std::optional<Reply> begin(Call& call, const Limits& limits);

  std::array<char, 5> prefix_{};
  std::size_t prefix_size_ = 0;
  std::size_t rest_ = 0;  ///< Of its length, not there yet.
};

/// Bytes behind the message that is answered. The stream's window bounds them.
class WaitingBytes {
 public:
  explicit WaitingBytes(Admission& admission) : counted_(admission) {}
  std::string_view text() const noexcept { return std::string_view(text_).substr(taken_); }
  bool empty() const noexcept { return taken_ == text_.size(); }
  /// False: the budget has no room for them.
  [[nodiscard]] bool add(std::string_view bytes);
  void remove(std::size_t bytes);
  void clear() noexcept { remove(text().size()); }

 private:
  std::string text_;
  std::size_t taken_ = 0;
  Admission::Bytes counted_;
};

/// A stream of HTTP/2: a unary call, or a call with a stream of requests that are answered in turn.
struct Http2Stream : NonCopyable {
  using Time = Connection::Clock::time_point;

  Http2Stream(std::int32_t number, std::shared_ptr<Call> first, Admission& admission, Time now)
      : id(number), head(std::move(first)), head_counted(admission), waiting(admission), since(now), taking(now) {}

  /// A request, or one message of several, has begun to arrive.
  bool arriving() const noexcept { return open && !under_way && (!has_requests || call != nullptr); }

  const std::int32_t id;
  const std::shared_ptr<Call> head;  ///< Its headers; of a unary call, all of it.
  std::size_t header_bytes = 0;      ///< With those of trailers.
  Admission::Bytes head_counted;
  bool head_refused = false;  ///< The budget has no room for it.

  // What arrives.
  bool has_requests = false;  ///< A stream of them.
  bool open = true;           ///< Messages are read and answered. Else all is said, or the client wants no more.
  bool half_closed = false;   ///< The client sends no more.
  bool under_way = false;     ///< The router has `call`.
  bool advancing = false;
  std::shared_ptr<Call> call;  ///< Whose message arrives, or is answered.
  GrpcMessage message;
  WaitingBytes waiting;
  Time since;  ///< When `call` began to arrive.

  // What is sent.
  Http2Output output;
  bool responded = false;    ///< The response's headers are on their way.
  bool plain = false;        ///< A response that is no gRPC's, without trailers.
  bool reset = false;        ///< The client took too little for too long.
  std::optional<Reply> end;  ///< Sent behind the output: its status and message.
  TakingTime taking;         ///< Of the output.
  std::size_t drained = 0;   ///< Bytes of it that were moved, of a stream that is listed for it.
};

}  // namespace ortmulti::serve
