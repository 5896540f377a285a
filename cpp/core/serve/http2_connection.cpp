#include "core/serve/http2_connection.hpp"

#include <array>
#include <limits>
#include <new>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/scope_exit.hpp"
#include "core/serve/connection.hpp"

namespace ortmulti::serve {
namespace {

constexpr std::uint32_t stream_window = std::uint32_t{1} << 20;
constexpr std::int32_t connection_window = std::int32_t{16} << 20;
constexpr std::uint32_t most_frame = std::uint32_t{256} << 10;
constexpr std::size_t read_size = std::size_t{128} << 10;
constexpr std::size_t most_unsent_frames = 500;  // that wait beside data, before nothing more is read

/// One for all connections of a thread: what is read is taken at once.
std::span<std::byte> read_buffer() {
  thread_local std::vector<std::byte> buffer(read_size);
  return buffer;
}

}  // namespace

Http2Connection::Http2Connection(const Nghttp2& nghttp2, const Shared& shared, std::string peer, std::uint64_t number,
                                 Time now)
    : nghttp2_(nghttp2),
      shared_(shared),
      limits_(shared.admission.limits()),
      peer_(std::move(peer)),
      number_(number),
      receive_(duration_of(limits_.receive)),
      send_(duration_of(limits_.send)),
      idle_(duration_of(limits_.idle)),
      session_(nullptr, nghttp2.session_del),
      patience_(now),
      now_(now),
      idle_since_(now),
      taking_(now),
      full_at_(now),
      head_since_(now) {
  open_session();
  // Advice to clients. What is beyond it is refused all the same.
  const auto number_of = [](std::size_t most) {
    return static_cast<std::uint32_t>(std::min<std::size_t>(most, std::numeric_limits<std::int32_t>::max()));
  };
  const std::array settings = {
      nghttp2_settings_entry{NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, number_of(limits_.streams)},
      nghttp2_settings_entry{NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, number_of(limits_.header)},
      nghttp2_settings_entry{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, stream_window},
      nghttp2_settings_entry{NGHTTP2_SETTINGS_MAX_FRAME_SIZE, most_frame},
  };
  check(nghttp2_.submit_settings(session_.get(), NGHTTP2_FLAG_NONE, settings.data(), settings.size()));
  check(nghttp2_.session_set_local_window_size(session_.get(), NGHTTP2_FLAG_NONE, 0, connection_window));
}

void Http2Connection::open_session() {
  const auto made = [](int result) {
    if (result != 0) {
      throw std::bad_alloc();
    }
  };
  nghttp2_option* option = nullptr;
  made(nghttp2_.option_new(&option));
  const ScopeExit free_option([&] { nghttp2_.option_del(option); });
  nghttp2_.option_set_no_auto_window_update(option, 1);
  nghttp2_.option_set_no_closed_streams(option, 1);
  if (nghttp2_.option_set_stream_reset_rate_limit != nullptr) {
    // Proxies cancel for many clients. Patience is what bounds it here.
    nghttp2_.option_set_stream_reset_rate_limit(option, std::uint64_t{1} << 40, std::uint64_t{1} << 40);
  }
  nghttp2_session_callbacks* callbacks = nullptr;
  made(nghttp2_.session_callbacks_new(&callbacks));
  const ScopeExit free_callbacks([&] { nghttp2_.session_callbacks_del(callbacks); });
  set_callbacks(callbacks);
  nghttp2_session* session = nullptr;
  made(nghttp2_.session_server_new2(&session, callbacks, this, option));
  session_.reset(session);
}

void Http2Connection::set_callbacks(nghttp2_session_callbacks* callbacks) const {
  using Session = nghttp2_session;
  using Frame = nghttp2_frame;
  nghttp2_.session_callbacks_set_on_begin_headers_callback(callbacks, [](Session*, const Frame* frame, void* self) {
    return guarded(self, [&](Http2Connection& connection) { connection.on_begin_headers(*frame); });
  });
  nghttp2_.session_callbacks_set_on_header_callback(
      callbacks, [](Session*, const Frame* frame, const std::uint8_t* name, std::size_t name_size,
                    const std::uint8_t* value, std::size_t value_size, std::uint8_t, void* self) {
        return guarded(self, [&](Http2Connection& connection) {
          connection.on_header(*frame, text_at(name, name_size), text_at(value, value_size));
        });
      });
  nghttp2_.session_callbacks_set_on_frame_recv_callback(callbacks, [](Session*, const Frame* frame, void* self) {
    return guarded(self, [&](Http2Connection& connection) { connection.on_frame(*frame); });
  });
  nghttp2_.session_callbacks_set_on_invalid_frame_recv_callback(callbacks, [](Session*, const Frame*, int, void* self) {
    return guarded(self, [](Http2Connection& connection) { connection.spend_patience(); });
  });
  nghttp2_.session_callbacks_set_on_data_chunk_recv_callback(
      callbacks, [](Session*, std::uint8_t, std::int32_t id, const std::uint8_t* data, std::size_t size, void* self) {
        return guarded(self, [&](Http2Connection& connection) { connection.on_data(id, text_at(data, size)); });
      });
  nghttp2_.session_callbacks_set_on_frame_send_callback(callbacks, [](Session*, const Frame* frame, void* self) {
    return guarded(self, [&](Http2Connection& connection) { connection.on_sent_frame(*frame); });
  });
  nghttp2_.session_callbacks_set_on_stream_close_callback(
      callbacks, [](Session*, std::int32_t id, std::uint32_t error, void* self) {
        return guarded(self, [&](Http2Connection& connection) { connection.on_stream_close(id, error); });
      });
  nghttp2_.session_callbacks_set_send_data_callback(
      callbacks,
      [](Session*, Frame*, const std::uint8_t* header, std::size_t size, nghttp2_data_source* source, void* self) {
        if (static_cast<Http2Connection*>(self)->output_.size() >= most_output) {
          return static_cast<int>(NGHTTP2_ERR_WOULDBLOCK);
        }
        return guarded(self, [&](Http2Connection& connection) {
          constexpr std::size_t frame_header = 9;
          connection.send_output(*static_cast<Http2Stream*>(source->ptr), text_at(header, frame_header), size);
        });
      });
}

std::span<std::byte> Http2Connection::room() {
  if (output_.size() > 0 && nghttp2_.session_get_outbound_queue_size(session_.get()) > most_unsent_frames) {
    return {};
  }
  return read_buffer();
}

void Http2Connection::received(std::size_t bytes, Time now) {
  now_ = now;
  if (broken_ || terminated_) {  // nghttp2 before 1.68.1 must read nothing more then (CVE-2026-27135)
    return;
  }
  const auto* const data = reinterpret_cast<const std::uint8_t*>(read_buffer().data());
  if (nghttp2_.session_mem_recv(session_.get(), data, bytes) < 0) {
    broken_ = true;
    lose_calls();
    return;
  }
  head_bytes_ += head_ != 0 ? bytes : 0;
  if (impatient_ || head_bytes_ > limits_.header + 2 * read_size) {
    terminate(NGHTTP2_ENHANCE_YOUR_CALM);
  }
}

void Http2Connection::received_end(bool /*lost*/, Time now) {
  now_ = now;
  broken_ = true;  // also of one that is half closed: windows do not open any more
  lose_calls();
}

std::size_t Http2Connection::to_send(std::span<iovec> parts) {
  if (broken_) {
    return 0;
  }
  if (output_.size() == 0) {
    taking_.begin(now_);
  }
  while (output_.size() < most_output && nghttp2_.session_want_write(session_.get()) != 0) {
    const std::uint8_t* data = nullptr;
    const ssize_t size = nghttp2_.session_mem_send(session_.get(), &data);
    if (size < 0) {
      broken_ = true;
      lose_calls();
      return 0;
    }
    if (size == 0) {
      break;
    }
    output_.append(text_at(data, static_cast<std::size_t>(size)));
  }
  return output_.fill(parts);
}

void Http2Connection::sent(std::size_t bytes, Time now) {
  now_ = now;
  taking_.took(bytes, now);
  if (output_.size() >= most_output) {
    full_at_ = now;
  }
  output_.drop(bytes);
  for (const std::int32_t id : std::exchange(drained_, {})) {
    if (Http2Stream* const stream = find_stream(id)) {
      stream->taking.took(std::exchange(stream->drained, 0), now);
      advance(*stream);
    }
  }
}

void Http2Connection::end(Time now) {
  now_ = now;
  if (ending_ || terminated_ || broken_) {
    return;
  }
  ending_ = now;
  check(nghttp2_.submit_goaway(session_.get(), NGHTTP2_FLAG_NONE,
                               nghttp2_.session_get_last_proc_stream_id(session_.get()), NGHTTP2_NO_ERROR, nullptr, 0));
  for (const auto& [id, stream] : streams_) {
    advance(*stream);
  }
}

bool Http2Connection::finished() const {
  return broken_ ||
         (nghttp2_.session_want_read(session_.get()) == 0 && nghttp2_.session_want_write(session_.get()) == 0);
}

Http2Connection::Time Http2Connection::arrives_until(const Http2Stream& stream) const {
  const Time until = stream.since + receive_;
  // What has not arrived half way to the server's end is refused while there is time to say so.
  return ending_ ? std::min(until, std::max(*ending_, stream.since) + duration_of(limits_.end / 2)) : until;
}

std::optional<Http2Connection::Time> Http2Connection::deadline() const {
  if (broken_) {
    return std::nullopt;
  }
  Time first = Time::max();
  if (output_.size() > 0) {
    first = taking_.since() + send_;
  }
  if (!terminated_) {
    if (head_ != 0) {
      first = std::min(first, head_since_ + receive_);
    }
    if (streams_.empty()) {
      first = std::min(first, idle_since_ + idle_);
    }
    for (const auto& [id, stream] : streams_) {
      if (stream->arriving() && id != head_) {
        first = std::min(first, arrives_until(*stream));
      }
      if (stream->output.size() > 0 && !stream->reset) {
        first = std::min(first, taken_until(*stream));
      }
    }
  }
  return first == Time::max() ? std::nullopt : std::optional(first);
}

void Http2Connection::on_time(Time now) {
  now_ = now;
  if (broken_) {
    return;
  }
  if (output_.size() > 0 && now >= taking_.since() + send_) {
    broken_ = true;
    lose_calls();
    return;
  }
  if (terminated_) {
    return;
  }
  if (head_ != 0 && now >= head_since_ + receive_) {
    terminate(NGHTTP2_ENHANCE_YOUR_CALM);
    return;
  }
  if (streams_.empty() && now >= idle_since_ + idle_) {
    terminate(NGHTTP2_NO_ERROR);
    return;
  }
  for (const auto& [id, stream] : streams_) {
    if (stream->arriving() && id != head_ && now >= arrives_until(*stream)) {
      refuse(*stream, ending_ ? 503 : 504, ending_ ? "the server ends" : "the request arrived too slowly");
    }
    if (stream->output.size() > 0 && !stream->reset && now >= taken_until(*stream)) {
      stream->open = false;
      stream->reset = true;
      drop_call(*stream);
      check(nghttp2_.submit_rst_stream(session_.get(), NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL));
    }
  }
}

Http2Stream* Http2Connection::find_stream(std::int32_t id) {
  const auto found = streams_.find(id);
  return found == streams_.end() ? nullptr : found->second.get();
}

void Http2Connection::on_stream_close(std::int32_t id, std::uint32_t error) {
  if (head_ == id) {
    head_ = 0;
  }
  const auto found = streams_.find(id);
  if (found == streams_.end()) {
    return;
  }
  const std::unique_ptr<Http2Stream> stream = std::move(found->second);
  streams_.erase(found);
  idle_since_ = now_;
  drop_call(*stream);
  if (error != NGHTTP2_NO_ERROR) {
    spend_patience();
  }
}

void Http2Connection::spend_patience() {
  impatient_ = !patience_.spend(now_) || impatient_;  // not terminated within nghttp2's own reading
}

void Http2Connection::drop_call(Http2Stream& stream) {
  stream.message.clear();
  const std::shared_ptr<Call> call = std::move(stream.call);
  if (std::exchange(stream.under_way, false)) {
    shared_.router.gone(call);
  } else if (call != nullptr) {  // the stream keeps its head until the client has closed it
    call->body = {};
    call->bytes.resize_down(0);
  }
}

void Http2Connection::lose_calls() {
  for (const auto& [id, stream] : streams_) {
    stream->open = false;
    stream->waiting.clear();
    drop_call(*stream);
  }
}

void Http2Connection::terminate(std::uint32_t error) {
  if (!std::exchange(terminated_, true)) {
    check(nghttp2_.session_terminate_session(session_.get(), error));
    lose_calls();
  }
}

// Checks the result of a function of nghttp2. It fails if memory is lacking, or if the stream is closed already, which
// does not matter.
void Http2Connection::check(int result) {
  if (result == NGHTTP2_ERR_NOMEM) {
    broken_ = true;
  }
}

std::unique_ptr<Connection> make_http2(const Shared& shared, std::string peer, std::uint64_t number,
                                       Connection::Clock::time_point now) {
  std::string reason;
  const Nghttp2* const nghttp2 = find_nghttp2(&reason);
  if (nghttp2 == nullptr) {
    throw Error(ErrorKind::library, reason);
  }
  return std::make_unique<Http2Connection>(*nghttp2, shared, std::move(peer), number, now);
}

}  // namespace ortmulti::serve
