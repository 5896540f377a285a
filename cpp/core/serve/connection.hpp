#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/base/non_copyable.hpp"
#include "core/serve/call.hpp"

namespace ortmulti::serve {

/// A protocol's side of a connection, without its socket: bytes in, calls out, answers in, bytes out. All functions are
/// called by one thread, its loop's. The loop reads into room(), calls received(), writes what to_send() says, calls
/// sent(), closes once `finished()` and nothing is to be sent, and calls on_time() at deadline().
class Connection : NonCopyable {
 public:
  using Clock = std::chrono::steady_clock;

  virtual ~Connection() = default;

  /// Where the next bytes go, at least one. Of a large body: its own memory. Empty: it reads nothing for now (too many
  /// answers wait to be sent, or one request is answered after the other).
  virtual std::span<std::byte> room() = 0;
  /// How many bytes it needs before it can do anything: the loop may wait for them before it reads. At least one.
  virtual std::uint64_t awaited() const { return 1; }
  virtual void received(std::size_t bytes, Clock::time_point now) = 0;
  /// The client sends nothing more, or the socket failed (`lost`): calls that nobody waits for are gone.
  virtual void received_end(bool lost, Clock::time_point now) = 0;

  /// Fills in what is to be sent, and returns of how many parts it is; 0: nothing.
  virtual std::size_t to_send(std::span<iovec> parts) = 0;
  virtual void sent(std::size_t bytes, Clock::time_point now) = 0;

  /// The answer to a call of this connection.
  virtual void reply(Call& call, Reply reply, Clock::time_point now) = 0;

  /// No more than one further request is accepted, and soon. What a byte was read of is still answered; then it is
  /// finished.
  virtual void end(Clock::time_point now) = 0;
  /// To be closed once what to_send() says is sent.
  virtual bool finished() const = 0;
  /// When on_time() is due: a request that arrives too slowly, an answer that is not taken, idleness.
  virtual std::optional<Clock::time_point> deadline() const = 0;
  virtual void on_time(Clock::time_point now) = 0;
};

inline Connection::Clock::duration duration_of(Limits::Seconds seconds) {
  return std::chrono::duration_cast<Connection::Clock::duration>(seconds);
}

/// The time that a client has to take 64 KiB of what is sent, or all of it: any byte would let it keep memory for ever.
class TakingTime {
 public:
  explicit TakingTime(Connection::Clock::time_point now) noexcept : since_(now) {}
  /// There is something to take, and there was nothing before.
  void begin(Connection::Clock::time_point now) noexcept {
    since_ = now;
    missing_ = least;
  }
  void took(std::size_t bytes, Connection::Clock::time_point now) noexcept {
    if (bytes >= missing_) {
      begin(now);
    } else {
      missing_ -= bytes;
    }
  }
  Connection::Clock::time_point since() const noexcept { return since_; }

 private:
  static constexpr std::size_t least = std::size_t{64} << 10;

  Connection::Clock::time_point since_;
  std::size_t missing_ = least;
};

/// What connections share.
struct Shared {
  Router& router;
  Admission& admission;
  BufferPool& buffers;
};

/// HTTP/1.1 (and 1.0). `peer`: "127.0.0.1 51234"; `number`: for Call::connection.
std::unique_ptr<Connection> make_http1(const Shared& shared, std::string peer, std::uint64_t number,
                                       Connection::Clock::time_point now);
/// gRPC over HTTP/2 cleartext with prior knowledge. Throws Error with ErrorKind::library where nghttp2 is missing.
std::unique_ptr<Connection> make_http2(const Shared& shared, std::string peer, std::uint64_t number,
                                       Connection::Clock::time_point now);

}  // namespace ortmulti::serve
