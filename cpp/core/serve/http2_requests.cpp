#include <utility>

#include "core/serve/http2_connection.hpp"
#include "core/serve/route.hpp"

namespace ortmulti::serve {
namespace {

constexpr std::size_t small_head = 4096;
constexpr std::size_t stream_bytes = 2048;                         // about, without its head
constexpr std::size_t most_unsent_answer = std::size_t{64} << 10;  // of a stream before its next message is read

bool is_grpc(const Headers& headers) {
  const std::string* const type = find(headers, "content-type");
  if (type == nullptr || !type->starts_with("application/grpc")) {
    return false;
  }
  const std::string_view rest = std::string_view(*type).substr(std::string_view("application/grpc").size());
  return rest.empty() || rest.front() == ';' || rest == "+proto" || rest.starts_with("+proto;");
}

}  // namespace

std::shared_ptr<Call> Http2Connection::new_call(std::int32_t stream) {
  auto call = std::make_shared<Call>(Protocol::grpc, shared_.buffers, shared_.admission);
  call->peer = peer_;
  call->connection = number_;
  call->stream = stream;
  return call;
}

void Http2Connection::on_begin_headers(const nghttp2_frame& frame) {
  head_ = frame.hd.stream_id;
  head_since_ = now_;
  head_bytes_ = 0;
  if (frame.headers.cat == NGHTTP2_HCAT_REQUEST) {
    streams_[head_] = std::make_unique<Http2Stream>(head_, new_call(head_), shared_.admission, now_);
  }
}

void Http2Connection::on_header(const nghttp2_frame& frame, std::string_view name, std::string_view value) {
  Http2Stream* const stream = find_stream(frame.hd.stream_id);
  if (stream == nullptr) {
    return;
  }
  constexpr std::size_t entry = 32;  // as HTTP/2 counts them
  stream->header_bytes += name.size() + value.size() + entry;
  if (frame.headers.cat != NGHTTP2_HCAT_REQUEST || stream->header_bytes > limits_.header) {
    return;
  }
  stream->head_refused = stream->head_refused || !count_head(*stream);
  if (stream->head_refused) {
    return;
  }
  Call& call = *stream->head;
  if (name == ":path") {
    const std::size_t end = std::min(value.find('?'), value.size());
    call.path = value.substr(0, end);
    call.query = value.substr(std::min(end + 1, value.size()));
  } else if (name == ":method") {
    call.method = value;
  } else if (name == ":authority") {
    call.headers.emplace_back("host", value);
  } else if (!name.starts_with(':')) {
    call.headers.emplace_back(name, value);
  }
}

void Http2Connection::on_frame(const nghttp2_frame& frame) {
  Http2Stream* const stream = find_stream(frame.hd.stream_id);
  const bool ends = (frame.hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
  switch (frame.hd.type) {
    case NGHTTP2_HEADERS:
      head_ = 0;
      if (stream != nullptr && stream->header_bytes > limits_.header) {
        refuse(*stream, 413, "the headers are larger than " + std::to_string(limits_.header) + " bytes");
      } else if (stream != nullptr && stream->head_refused) {
        refuse(*stream, 503, "the server has no memory for this request now: try again later");
      } else if (stream != nullptr && frame.headers.cat == NGHTTP2_HCAT_REQUEST) {
        begin_request(*stream);
      }
      break;
    case NGHTTP2_DATA:
      if (!ends && frame.hd.length <= frame.data.padlen) {
        spend_patience();
      }
      break;
    default:
      spend_patience();
      return;
  }
  if (ends && stream != nullptr) {
    stream->half_closed = true;
    end_requests(*stream);
  }
}

// Counts what a stream takes before its message does: a byte of a client may be a header of kilobytes. The only stream
// of a connection is not counted where its head is small: health is answered without a budget too.
bool Http2Connection::count_head(Http2Stream& stream) {
  const bool small = streams_.size() == 1 && stream.header_bytes <= small_head;
  return small || stream.head_counted.grow_to(stream_bytes + 2 * stream.header_bytes);  // messages of a stream have it
}

void Http2Connection::begin_request(Http2Stream& stream) {
  Call& call = *stream.head;
  if (!is_grpc(call.headers)) {
    refuse_plainly(stream, "415", "This port speaks gRPC: content-type is application/grpc.\n");
    return;
  }
  if (call.method != "POST") {
    refuse_plainly(stream, "405", "gRPC's method is POST.\n");
    return;
  }
  stream.has_requests = call.streamed = has_request_stream(call.path);
  if (auto reply = shared_.router.begin(call)) {
    refuse(stream, std::move(*reply));
  } else if (stream.has_requests) {
    call.place.reset();  // each message takes one
  } else {
    stream.call = stream.head;
  }
}

void Http2Connection::on_data(std::int32_t id, std::string_view bytes) {
  check(nghttp2_.session_consume_connection(session_.get(), bytes.size()));
  Http2Stream* const stream = find_stream(id);
  if (stream == nullptr) {
    return;
  }
  patience_.earn(static_cast<double>(bytes.size()) * Patience::per_byte);
  while (!bytes.empty() && stream->waiting.empty() && may_take(*stream)) {
    take(*stream, bytes);
  }
  if (!bytes.empty() && stream->open && !stream->waiting.add(bytes)) {
    refuse(*stream, 503, "the server has no memory for this request now: try again later");
  }
}

bool Http2Connection::may_take(const Http2Stream& stream) const {
  return stream.open && !stream.under_way && stream.output.size() < most_unsent_answer;
}

// Reads of the bytes what belongs to one message, and hands it over where it is complete.
void Http2Connection::take(Http2Stream& stream, std::string_view& bytes) {
  if (stream.call == nullptr) {
    auto call = new_call(stream.id);
    call->method = stream.head->method;
    call->path = stream.head->path;
    call->query = stream.head->query;
    call->headers = stream.head->headers;
    call->streamed = true;
    stream.since = now_;
    if (auto reply = shared_.router.begin(*call)) {
      refuse(stream, std::move(*reply));
      return;
    }
    stream.call = std::move(call);
  }
  if (!stream.has_requests && stream.message.complete()) {
    refuse(stream, 400, "more than one message was sent: this method takes one");
    return;
  }
  const std::size_t there = bytes.size();
  auto refused = stream.message.take(*stream.call, bytes, limits_);
  check(nghttp2_.session_consume_stream(session_.get(), stream.id, there - bytes.size()));
  if (refused) {
    shared_.router.answered_itself(refused->status);
    refuse(stream, std::move(*refused));
  } else if (stream.has_requests && stream.message.complete()) {
    hand_over(stream);
  }
}

void Http2Connection::hand_over(Http2Stream& stream) {
  stream.message.clear();
  stream.under_way = true;
  shared_.router.finish(stream.call);  // which may answer
}

// Reads on in a stream of requests, as far as there is something that may be read.
void Http2Connection::advance(Http2Stream& stream) {
  if (stream.advancing || !stream.has_requests) {
    return;  // it is called by an answer to what it handed over
  }
  stream.advancing = true;
  while (!stream.waiting.empty() && may_take(stream)) {
    std::string_view bytes = stream.waiting.text();
    const std::size_t there = bytes.size();
    take(stream, bytes);
    if (stream.open) {  // else none waits any more
      stream.waiting.remove(there - bytes.size());
    }
  }
  stream.advancing = false;
  if (!stream.open || stream.under_way || !stream.waiting.empty()) {
    return;
  }
  if (stream.half_closed && stream.call != nullptr) {
    refuse(stream, 400, "the stream ended within a message");
  } else if (stream.half_closed) {
    finish(stream, {});
  } else if (ending_ && stream.call == nullptr) {
    refuse(stream, 503, "the server ends");
  }
}

void Http2Connection::end_requests(Http2Stream& stream) {
  if (!stream.open) {
    return;
  }
  if (stream.has_requests) {
    advance(stream);
  } else if (stream.message.complete()) {
    hand_over(stream);
  } else {
    refuse(stream, 400, stream.message.empty() ? "no message was sent" : "the message was cut off");
  }
}

}  // namespace ortmulti::serve
