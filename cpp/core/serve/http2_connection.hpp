#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/serve/connection.hpp"
#include "core/serve/http2_output.hpp"
#include "core/serve/http2_stream.hpp"
#include "core/serve/nghttp2.hpp"

namespace ortmulti::serve {

/// The bytes that nghttp2 means.
inline std::string_view text_at(const std::uint8_t* bytes, std::size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

/// What clients may send that asks for nothing. Frames use it up; time, answers and bytes bring it back.
class Patience {
 public:
  using Time = Connection::Clock::time_point;

  explicit Patience(Time now) : last_(now) {}
  void earn(double frames) noexcept { left_ = std::min(left_ + frames, most); }
  /// False: there is none left.
  bool spend(Time now) noexcept {
    earn(std::chrono::duration<double>(now - last_).count() * per_second);
    last_ = now;
    left_ -= 1;
    return left_ > 0;
  }

  static constexpr double per_answer = 8;
  static constexpr double per_byte = 1.0 / 1024;

 private:
  static constexpr double most = 2000;
  static constexpr double per_second = 100;

  double left_ = most;
  Time last_;
};

/// A session of nghttp2, as a server. What clients send is in http2_requests.cpp, what they get in http2_answers.cpp.
class Http2Connection final : public Connection {
 public:
  using Time = Clock::time_point;

  Http2Connection(const Nghttp2& nghttp2, const Shared& shared, std::string peer, std::uint64_t number, Time now);
  ~Http2Connection() override { lose_calls(); }

  std::span<std::byte> room() override;
  void received(std::size_t bytes, Time now) override;
  void received_end(bool lost, Time now) override;
  std::size_t to_send(std::span<iovec> parts) override;
  void sent(std::size_t bytes, Time now) override;
  void reply(Call& call, Reply reply, Time now) override;
  void end(Time now) override;
  bool finished() const override;
  std::optional<Time> deadline() const override;
  void on_time(Time now) override;

 private:
  /// Bytes taken of streams before the socket takes them.
  static constexpr std::size_t most_output = std::size_t{256} << 10;

  void open_session();
  void set_callbacks(nghttp2_session_callbacks* callbacks) const;
  /// What nghttp2 calls must not throw through it.
  static int guarded(void* self, const auto& function) noexcept {
    try {
      function(*static_cast<Http2Connection*>(self));
      return 0;
    } catch (...) {
      return NGHTTP2_ERR_CALLBACK_FAILURE;  // which ends the connection
    }
  }

  void on_begin_headers(const nghttp2_frame& frame);
  void on_header(const nghttp2_frame& frame, std::string_view name, std::string_view value);
  void on_frame(const nghttp2_frame& frame);
  void on_data(std::int32_t id, std::string_view bytes);
  void on_sent_frame(const nghttp2_frame& frame);
  void on_stream_close(std::int32_t id, std::uint32_t error);
  ssize_t read_output(Http2Stream& stream, std::size_t most, std::uint32_t& flags);
  void send_output(Http2Stream& stream, std::string_view frame_header, std::size_t size);

  bool count_head(Http2Stream& stream);
  void begin_request(Http2Stream& stream);
  void end_requests(Http2Stream& stream);
  void take(Http2Stream& stream, std::string_view& bytes);
  void hand_over(Http2Stream& stream);
  void advance(Http2Stream& stream);
  void answer(Http2Stream& stream, Reply reply, std::shared_ptr<Call> call);
  void finish(Http2Stream& stream, Reply reply);
  void refuse(Http2Stream& stream, Reply reply);
  void refuse(Http2Stream& stream, int status, std::string_view text) {
    shared_.router.answered_itself(status);
    refuse(stream, refusal(Protocol::grpc, status, text));
  }
  void refuse_plainly(Http2Stream& stream, std::string_view status, std::string_view text);
  void respond(Http2Stream& stream, std::span<const nghttp2_nv> fields, bool with_output);

  Http2Stream* find_stream(std::int32_t id);
  std::shared_ptr<Call> new_call(std::int32_t stream);
  bool may_take(const Http2Stream& stream) const;
  Time arrives_until(const Http2Stream& stream) const;
  Time taken_until(const Http2Stream& stream) const { return std::max(stream.taking.since(), full_at_) + send_; }
  void spend_patience();
  void drop_call(Http2Stream& stream);
  void lose_calls();
  void terminate(std::uint32_t error);
  void check(int result);

  const Nghttp2& nghttp2_;
  const Shared shared_;
  const Limits& limits_;
  const std::string peer_;
  const std::uint64_t number_;
  const Clock::duration receive_, send_, idle_;
  std::unique_ptr<nghttp2_session, decltype(Nghttp2::session_del)> session_;
  std::unordered_map<std::int32_t, std::unique_ptr<Http2Stream>> streams_;
  Http2Output output_;
  std::vector<std::int32_t> drained_;  ///< Streams whose output was moved to `output_`.
  Patience patience_;
  Time now_;
  Time idle_since_;
  TakingTime taking_;  ///< Of what the socket takes.
  /// When it took something while no more could be moved to `output_`: streams wait for the socket, not for their
  /// windows.
  Time full_at_;
  std::int32_t head_ = 0;  ///< The stream whose header block has begun and not ended; 0: none.
  Time head_since_;
  std::size_t head_bytes_ = 0;  ///< Received since it began, about: what is skipped is no field.
  std::optional<Time> ending_;
  bool impatient_ = false;   ///< It is to be terminated when what was received is read.
  bool terminated_ = false;  ///< Nothing is read or answered any more.
  bool broken_ = false;      ///< Nor sent.
};

}  // namespace ortmulti::serve
