#include <array>
#include <limits>
#include <utility>

#include "core/serve/http2_connection.hpp"

namespace ortmulti::serve {
namespace {

constexpr std::string_view accepted_encodings = "identity,gzip,deflate";
constexpr std::size_t most_message = 4096;  // of an error, as sent: clients take 8 KiB of headers

nghttp2_nv field(std::string_view name, std::string_view value) {
  const auto bytes = [](std::string_view text) {
    return const_cast<std::uint8_t*>(reinterpret_cast<const std::uint8_t*>(text.data()));
  };
  return {bytes(name), bytes(value), name.size(), value.size(), NGHTTP2_NV_FLAG_NONE};
}

/// Returns the text as grpc-message has it: printable ASCII but "%", and all other bytes in the form "%E2".
std::string percent_encoded(std::string_view text) {
  constexpr std::string_view digits = "0123456789ABCDEF";
  std::string encoded;
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    const bool begins = (byte & 0xC0U) != 0x80U;
    if (begins && encoded.size() > most_message - std::string_view("%F0%9F%98%80").size()) {
      break;
    }
    if (byte >= 0x20U && byte < 0x7FU && byte != '%') {
      encoded += character;
    } else if (encoded.size() < most_message) {
      ((encoded += '%') += digits[byte >> 4U]) += digits[byte & 15U];
    }
  }
  return encoded;
}

}  // namespace

void Http2Connection::reply(Call& call, Reply reply, Time now) {
  now_ = now;
  Http2Stream* const stream = find_stream(static_cast<std::int32_t>(call.stream));
  if (stream == nullptr || !stream->under_way || stream->call.get() != &call) {
    return;
  }
  stream->under_way = false;
  patience_.earn(Patience::per_answer);
  const std::shared_ptr<Call> answered = std::move(stream->call);
  answered->place.reset();  // a client that takes its answer slowly keeps no others from asking
  if (reply.status == 200 && reply.size() > std::numeric_limits<std::uint32_t>::max()) {
    reply = refusal(Protocol::grpc, 500, "the answer is larger than a message of gRPC can be (4 GiB)");
  }
  if (reply.status != 200) {
    refuse(*stream, std::move(reply));
    return;
  }
  answer(*stream, std::move(reply), answered);
  if (stream->has_requests) {
    advance(*stream);
  } else {
    finish(*stream, {});
  }
}

// Queues a message. The call counts its bytes until they are sent.
void Http2Connection::answer(Http2Stream& stream, Reply reply, std::shared_ptr<Call> call) {
  const std::size_t size = reply.size();
  call->body = {};
  call->bytes.set(size);
  if (stream.output.size() == 0) {
    stream.taking.begin(now_);
  }
  const std::array<char, 5> prefix = GrpcMessage::prefix(size);
  stream.output.append({prefix.data(), prefix.size()});
  for (Piece& piece : reply.body) {
    stream.output.append(std::move(piece));
  }
  stream.output.append(Piece{{}, std::move(call)});
  if (stream.responded) {
    nghttp2_.session_resume_data(session_.get(), stream.id);  // fails where it waits for nothing
    return;
  }
  const std::array fields = {field(":status", "200"), field("content-type", "application/grpc"),
                             field("grpc-accept-encoding", accepted_encodings)};
  respond(stream, fields, true);
}

// All is answered, or refused: the status is the last that is sent.
void Http2Connection::finish(Http2Stream& stream, Reply reply) {
  stream.open = false;
  stream.waiting.clear();
  if (stream.responded) {
    stream.end = std::move(reply);
    nghttp2_.session_resume_data(session_.get(), stream.id);
    return;
  }
  const std::string status = std::to_string(static_cast<int>(to_grpc(reply.status)));
  const std::string message = percent_encoded(reply.message);
  const std::array fields = {field(":status", "200"), field("content-type", "application/grpc"),
                             field("grpc-status", status), field("grpc-accept-encoding", accepted_encodings),
                             field("grpc-message", message)};
  respond(stream, std::span(fields).first(message.empty() ? 4 : 5), false);
}

void Http2Connection::refuse(Http2Stream& stream, Reply reply) {
  if (stream.open) {
    finish(stream, std::move(reply));
    drop_call(stream);
  }
}

void Http2Connection::refuse_plainly(Http2Stream& stream, std::string_view status, std::string_view text) {
  const bool with_text = stream.head->method != "HEAD";
  stream.open = false;
  stream.plain = true;
  if (with_text) {
    stream.output.append(text);
    stream.end.emplace();
  }
  const std::array fields = {field(":status", status), field("content-type", "text/plain"), field("allow", "POST")};
  respond(stream, fields, with_text);
}

void Http2Connection::respond(Http2Stream& stream, std::span<const nghttp2_nv> fields, bool with_output) {
  stream.responded = true;
  stream.taking.begin(now_);
  nghttp2_data_provider provider{};
  provider.source.ptr = &stream;
  provider.read_callback = [](nghttp2_session*, std::int32_t, std::uint8_t*, std::size_t most, std::uint32_t* flags,
                              nghttp2_data_source* source, void* self) -> ssize_t {
    ssize_t size = 0;
    const int result = guarded(self, [&](Http2Connection& connection) {
      size = connection.read_output(*static_cast<Http2Stream*>(source->ptr), most, *flags);
    });
    return result == 0 ? size : result;
  };
  check(nghttp2_.submit_response(session_.get(), stream.id, fields.data(), fields.size(),
                                 with_output ? &provider : nullptr));
}

// Says how many bytes the next frame of data has. send_output() has them sent.
ssize_t Http2Connection::read_output(Http2Stream& stream, std::size_t most, std::uint32_t& flags) {
  const std::size_t size = std::min(most, stream.output.size());
  const bool last = size == stream.output.size() && stream.end;
  if (size == 0 && !last) {
    return NGHTTP2_ERR_DEFERRED;
  }
  flags |= NGHTTP2_DATA_FLAG_NO_COPY;
  if (last) {
    flags |= NGHTTP2_DATA_FLAG_EOF;
  }
  if (last && !stream.plain) {
    flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
    const std::string status = std::to_string(static_cast<int>(to_grpc(stream.end->status)));
    const std::string message = percent_encoded(stream.end->message);
    const std::array fields = {field("grpc-status", status), field("grpc-message", message)};
    check(nghttp2_.submit_trailer(session_.get(), stream.id, fields.data(), message.empty() ? 1 : 2));
  }
  return static_cast<ssize_t>(size);
}

void Http2Connection::send_output(Http2Stream& stream, std::string_view frame_header, std::size_t size) {
  output_.append(frame_header);
  stream.output.move_to(output_, size);
  patience_.earn(static_cast<double>(size) * Patience::per_byte);
  if (stream.drained == 0) {
    drained_.push_back(stream.id);
  }
  stream.drained += size;
}

void Http2Connection::on_sent_frame(const nghttp2_frame& frame) {
  const bool can_end = frame.hd.type == NGHTTP2_HEADERS || frame.hd.type == NGHTTP2_DATA;
  if (!can_end || (frame.hd.flags & NGHTTP2_FLAG_END_STREAM) == 0) {
    return;
  }
  const Http2Stream* const stream = find_stream(frame.hd.stream_id);
  if (stream != nullptr && !stream->half_closed) {  // all is said: the client need not send the rest
    check(nghttp2_.submit_rst_stream(session_.get(), NGHTTP2_FLAG_NONE, stream->id, NGHTTP2_NO_ERROR));
  }
}

}  // namespace ortmulti::serve
