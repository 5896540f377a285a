#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/onnx/wire.hpp"
#include "core/serve/connection.hpp"
#include "core/serve/nghttp2.hpp"

namespace ortmulti::serve {
namespace {

using namespace std::chrono_literals;
using Clock = Connection::Clock;

constexpr std::string_view unary_path = "/inference.GRPCInferenceService/ModelInfer";
constexpr std::string_view stream_path = "/inference.GRPCInferenceService/ModelStreamInfer";

template <typename Pointer>
class Function {
 public:
  explicit Function(const char* name)
      : pointer_(reinterpret_cast<Pointer>(dlsym(dlopen("libnghttp2.so.14", RTLD_NOW | RTLD_LOCAL), name))) {}
  template <typename... Arguments>
  auto operator()(Arguments... arguments) const {
    return pointer_(arguments...);
  }

 private:
  Pointer pointer_;
};

/// nghttp2's functions that only a client calls.
struct ClientFunctions {
  const Function<decltype(&nghttp2_session_client_new2)> session_client_new2{"nghttp2_session_client_new2"};
  const Function<decltype(&nghttp2_submit_request)> submit_request{"nghttp2_submit_request"};
  const Function<decltype(&nghttp2_submit_window_update)> submit_window_update{"nghttp2_submit_window_update"};
  const Function<decltype(&nghttp2_submit_ping)> submit_ping{"nghttp2_submit_ping"};
};

std::string message_of(std::string_view body) {
  const auto size = static_cast<std::uint32_t>(body.size());
  std::string message(1, '\0');
  for (const unsigned shift : {24U, 16U, 8U, 0U}) {
    message += static_cast<char>(size >> shift & 0xFFU);
  }
  return message.append(body);
}

std::string some_bytes(std::size_t size) {
  std::mt19937_64 random(size);
  std::string bytes(size, '\0');
  std::ranges::generate(bytes, [&] { return static_cast<char>(random()); });
  return bytes;
}

/// A frame of HTTP/2, whatever it holds.
std::string frame(std::uint8_t type, std::uint8_t flags, std::uint32_t stream, std::string_view payload) {
  std::string bytes;
  for (const unsigned shift : {16U, 8U, 0U}) {
    bytes += static_cast<char>(payload.size() >> shift & 0xFFU);
  }
  (bytes += static_cast<char>(type)) += static_cast<char>(flags);
  for (const unsigned shift : {24U, 16U, 8U, 0U}) {
    bytes += static_cast<char>(stream >> shift & 0xFFU);
  }
  return bytes.append(payload);
}

/// Answers with what it is given. It keeps no call that has gone or is answered.
class TestRouter : public Router {
 public:
  std::unique_ptr<Reply> begin(Call& call) override {
    begun.push_back(call.path);
    if (on_begin) {
      return on_begin(call);
    }
    return nullptr;
  }
  void finish(std::shared_ptr<Call> call) override {
    finished.emplace_back(call->body.text());
    calls.push_back(std::move(call));
    if (on_finish) {
      on_finish(*calls.back());
    }
  }
  void gone(const std::shared_ptr<Call>& call) override {
    ++gone_calls;
    std::erase(calls, call);
  }

  std::function<std::unique_ptr<Reply>(Call&)> on_begin;
  std::function<void(Call&)> on_finish;
  std::vector<std::string> begun;
  std::vector<std::string> finished;
  std::vector<std::shared_ptr<Call>> calls;  ///< Under way, or answered by on_finish.
  int gone_calls = 0;
};

/// A client's session of nghttp2.
class Client {
 public:
  struct Stream {
    std::string to_send;
    std::size_t sent = 0;
    bool half_close = true;
    std::map<std::string, std::string> headers;  ///< And trailers.
    int header_blocks = 0;
    std::string data;
    std::optional<std::uint32_t> closed;
  };

  Client(bool auto_window, std::optional<std::uint32_t> window) {
    nghttp2_session_callbacks* callbacks = nullptr;
    table->session_callbacks_new(&callbacks);
    set_callbacks(callbacks);
    nghttp2_option* option = nullptr;
    table->option_new(&option);
    table->option_set_no_auto_window_update(option, auto_window ? 0 : 1);
    functions.session_client_new2(&session, callbacks, this, option);
    table->option_del(option);
    table->session_callbacks_del(callbacks);
    const nghttp2_settings_entry entry{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, window.value_or(65535)};
    table->submit_settings(session, NGHTTP2_FLAG_NONE, &entry, 1);
  }
  ~Client() { table->session_del(session); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  std::int32_t open(std::string_view path, std::string body, bool half_close = true,
                    std::vector<std::pair<std::string, std::string>> more = {}) {
    more.insert(more.begin(), {{":method", "POST"},
                               {":scheme", "http"},
                               {":path", std::string(path)},
                               {":authority", "localhost"},
                               {"te", "trailers"},
                               {"content-type", "application/grpc"}});
    return request(more, std::move(body), half_close);
  }

  std::int32_t request(const std::vector<std::pair<std::string, std::string>>& headers, std::string body,
                       bool half_close = true) {
    std::vector<nghttp2_nv> fields;
    fields.reserve(headers.size());
    for (const auto& [name, value] : headers) {
      fields.push_back({to_bytes(name), to_bytes(value), name.size(), value.size(), NGHTTP2_NV_FLAG_NONE});
    }
    nghttp2_data_provider provider{};
    provider.source.ptr = this;
    provider.read_callback = [](nghttp2_session*, std::int32_t id, std::uint8_t* bytes, std::size_t most,
                                std::uint32_t* flags, nghttp2_data_source* source, void*) -> ssize_t {
      Stream& stream = static_cast<Client*>(source->ptr)->streams[id];
      const std::size_t size = std::min(most, stream.to_send.size() - stream.sent);
      std::copy_n(stream.to_send.begin() + static_cast<std::ptrdiff_t>(stream.sent), size, bytes);
      stream.sent += size;
      if (stream.sent == stream.to_send.size() && stream.half_close) {
        *flags |= NGHTTP2_DATA_FLAG_EOF;
      } else if (size == 0) {
        return NGHTTP2_ERR_DEFERRED;
      }
      return static_cast<ssize_t>(size);
    };
    const bool empty = body.empty() && half_close;
    const std::int32_t id =
        functions.submit_request(session, nullptr, fields.data(), fields.size(), empty ? nullptr : &provider, nullptr);
    streams[id].to_send = std::move(body);
    streams[id].half_close = half_close;
    return id;
  }

  void send(std::int32_t id, std::string_view bytes, bool half_close = false) {
    streams[id].to_send += bytes;
    streams[id].half_close = half_close;
    table->session_resume_data(session, id);
  }
  void reset(std::int32_t id) const { table->submit_rst_stream(session, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL); }
  void open_window(std::int32_t id, std::int32_t bytes) const {
    functions.submit_window_update(session, NGHTTP2_FLAG_NONE, id, bytes);
  }

  const Nghttp2* table = find_nghttp2(nullptr);
  ClientFunctions functions;
  nghttp2_session* session = nullptr;
  std::map<std::int32_t, Stream> streams;
  std::optional<std::uint32_t> goaway;
  int pings = 0;  ///< Answered.

 private:
  static std::uint8_t* to_bytes(const std::string& text) {
    return const_cast<std::uint8_t*>(reinterpret_cast<const std::uint8_t*>(text.data()));
  }

  void set_callbacks(nghttp2_session_callbacks* callbacks) const {
    table->session_callbacks_set_on_header_callback(
        callbacks, [](nghttp2_session*, const nghttp2_frame* received, const std::uint8_t* name, std::size_t name_size,
                      const std::uint8_t* value, std::size_t value_size, std::uint8_t, void* self) {
          auto& stream = static_cast<Client*>(self)->streams[received->hd.stream_id];
          stream.headers[std::string(name, name + name_size)] = std::string(value, value + value_size);
          return 0;
        });
    table->session_callbacks_set_on_frame_recv_callback(
        callbacks, [](nghttp2_session*, const nghttp2_frame* received, void* self) {
          auto& client = *static_cast<Client*>(self);
          if (received->hd.type == NGHTTP2_HEADERS) {
            ++client.streams[received->hd.stream_id].header_blocks;
          } else if (received->hd.type == NGHTTP2_GOAWAY) {
            client.goaway = received->goaway.error_code;
          } else if (received->hd.type == NGHTTP2_PING) {
            ++client.pings;
          }
          return 0;
        });
    table->session_callbacks_set_on_data_chunk_recv_callback(
        callbacks,
        [](nghttp2_session*, std::uint8_t, std::int32_t id, const std::uint8_t* data, std::size_t size, void* self) {
          static_cast<Client*>(self)->streams[id].data.append(data, data + size);
          return 0;
        });
    table->session_callbacks_set_on_stream_close_callback(
        callbacks, [](nghttp2_session*, std::int32_t id, std::uint32_t error, void* self) {
          static_cast<Client*>(self)->streams[id].closed = error;
          return 0;
        });
  }
};

class Http2 : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(why_no_http2(), "");
    start();
  }

  void start(bool auto_window = true, std::optional<std::uint32_t> window = std::nullopt) {
    connection.reset();
    router.calls.clear();
    admission = std::make_unique<Admission>(limits);
    client = std::make_unique<Client>(auto_window, window);
    connection = make_http2({router, *admission, buffers}, "127.0.0.1 5", 7, now);
  }

  /// The server reads these bytes, in parts of `cut` bytes; as many as it takes.
  std::size_t feed(std::string_view bytes, std::size_t cut = std::string_view::npos) {
    std::size_t read = 0;
    while (read < bytes.size() && !connection->finished()) {
      const std::span<std::byte> room = connection->room();
      if (room.empty()) {
        break;
      }
      const std::size_t size = std::min({cut, room.size(), bytes.size() - read});
      std::memcpy(room.data(), bytes.data() + read, size);
      connection->received(size, now);
      read += size;
    }
    return read;
  }

  /// What the server sends at most `most` bytes of.
  std::string take(std::size_t most = std::string_view::npos) {
    std::string bytes;
    std::array<iovec, 5> parts{};
    while (bytes.size() < most) {
      const std::size_t count = connection->to_send(parts);
      if (count == 0) {
        break;
      }
      std::size_t taken = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t size = std::min(parts[i].iov_len, most - bytes.size());
        bytes.append(static_cast<const char*>(parts[i].iov_base), size);
        taken += size;
      }
      connection->sent(taken, now);
    }
    return bytes;
  }

  bool client_sends(std::size_t cut) {
    bool any = false;
    const std::uint8_t* data = nullptr;
    for (;;) {
      const ssize_t size = client->table->session_mem_send(client->session, &data);
      EXPECT_GE(size, 0);
      if (size <= 0) {
        return any;
      }
      any = true;
      feed({reinterpret_cast<const char*>(data), static_cast<std::size_t>(size)}, cut);
    }
  }

  bool client_reads(std::size_t cut) {
    const std::string bytes = take();
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t size = std::min(cut, bytes.size() - at);
      EXPECT_EQ(client->table->session_mem_recv(client->session,
                                                reinterpret_cast<const std::uint8_t*>(bytes.data()) + at, size),
                static_cast<ssize_t>(size));
      at += size;
    }
    return !bytes.empty();
  }

  /// Both sides send until there is nothing more.
  void pump(std::size_t cut = std::string_view::npos) {
    bool any = true;
    while (any) {
      any = client_sends(cut);
      any = client_reads(cut) || any;
    }
  }

  void answer(std::size_t which, std::string body) {
    const std::shared_ptr<Call> call = router.calls.at(which);
    router.calls.erase(router.calls.begin() + static_cast<std::ptrdiff_t>(which));
    connection->reply(*call, {.status = 200, .headers = {}, .body = {piece_of(std::move(body))}, .message = {}}, now);
  }

  void echo() {
    router.on_finish = [this](Call& call) {
      connection->reply(
          call, {.status = 200, .headers = {}, .body = {piece_of(std::string(call.body.text()))}, .message = {}}, now);
      router.calls.clear();
    };
  }

  void pass(Clock::duration time) {
    now += time;
    const auto due = connection->deadline();
    if (due && *due <= now) {
      connection->on_time(now);
      const auto next = connection->deadline();
      EXPECT_TRUE(!next || *next > now || connection->finished()) << "it would be called again at once";
    }
  }

  Client::Stream& stream(std::int32_t id) { return client->streams[id]; }
  std::string status(std::int32_t id) { return stream(id).headers["grpc-status"]; }

  Clock::time_point now = Clock::time_point(1h);
  Limits limits;
  BufferPool buffers{std::size_t{1} << 20};
  std::unique_ptr<Admission> admission;
  TestRouter router;
  std::unique_ptr<Client> client;
  std::unique_ptr<Connection> connection;
};

TEST_F(Http2, AnswersAUnaryCall) {
  const auto id =
      client->open(unary_path, message_of("question"), true, {{"authorization", "Bearer x"}, {"grpc-timeout", "5S"}});
  pump();
  ASSERT_EQ(router.calls.size(), 1);
  const Call& call = *router.calls[0];
  EXPECT_EQ(call.protocol, Protocol::grpc);
  EXPECT_EQ(call.method, "POST");
  EXPECT_EQ(call.path, unary_path);
  EXPECT_EQ(call.body.text(), "question");
  EXPECT_EQ(call.peer, "127.0.0.1 5");
  EXPECT_EQ(call.connection, 7);
  EXPECT_FALSE(call.streamed);
  EXPECT_EQ(*find(call.headers, "authorization"), "Bearer x");
  EXPECT_EQ(*find(call.headers, "grpc-timeout"), "5S");
  EXPECT_TRUE(std::ranges::none_of(call.headers, [](const auto& each) { return each.first.starts_with(':'); }));
  EXPECT_GE(call.bytes.count(), 8);
  EXPECT_FALSE(stream(id).closed);
  answer(0, "reply");
  pump();
  EXPECT_EQ(stream(id).headers[":status"], "200");
  EXPECT_EQ(stream(id).headers["content-type"], "application/grpc");
  EXPECT_EQ(stream(id).data, message_of("reply"));
  EXPECT_EQ(status(id), "0");
  EXPECT_EQ(stream(id).header_blocks, 2);
  EXPECT_EQ(stream(id).closed, NGHTTP2_NO_ERROR);
  EXPECT_EQ(admission->bytes(), 0);
  EXPECT_EQ(router.gone_calls, 0);
}

TEST_F(Http2, AnswersAtOnceAndEmptyMessages) {
  echo();
  const auto id = client->open(unary_path, message_of(""));
  pump();
  EXPECT_EQ(router.finished, std::vector<std::string>{""});
  EXPECT_EQ(stream(id).data, message_of(""));
  EXPECT_EQ(status(id), "0");
}

TEST_F(Http2, ReadsMessagesCutAnywhere) {
  echo();
  for (const std::size_t cut : {1, 2, 3, 7, 16}) {
    start();
    const auto first = client->open(unary_path, message_of("some message"));
    const auto second = client->open(stream_path, message_of("one") + message_of("") + message_of("three"));
    pump(cut);
    EXPECT_EQ(stream(first).data, message_of("some message")) << cut;
    EXPECT_EQ(status(first), "0");
    EXPECT_EQ(stream(second).data, message_of("one") + message_of("") + message_of("three")) << cut;
    EXPECT_EQ(status(second), "0");
  }
}

TEST_F(Http2, LargeMessagesInBothDirectionsThroughSmallWindows) {
  echo();
  start(true, 1000);
  const std::string body = some_bytes(3'000'000);
  const auto first = client->open(unary_path, message_of(body));
  const auto second = client->open(stream_path, message_of(body) + message_of("x") + message_of(body));
  pump();
  EXPECT_EQ(stream(first).data, message_of(body));
  EXPECT_EQ(status(first), "0");
  EXPECT_EQ(stream(second).data, message_of(body) + message_of("x") + message_of(body));
  EXPECT_EQ(status(second), "0");
  EXPECT_EQ(admission->bytes(), 0);
}

TEST_F(Http2, LargeAnswersAreNotCopied) {
  start(true, 1U << 30U);
  const auto id = client->open(unary_path, message_of("x"));
  client->open_window(0, 1 << 30);
  pump();
  const auto owner = std::make_shared<std::string>(some_bytes(100'000));
  const std::shared_ptr<Call> call = std::exchange(router.calls, {}).at(0);
  connection->reply(*call, {.status = 200, .headers = {}, .body = {{*owner, owner}, piece_of("end")}, .message = {}},
                    now);
  std::array<iovec, 64> parts{};
  const std::size_t count = connection->to_send(parts);
  std::size_t inside = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto* const at = static_cast<const char*>(parts[i].iov_base);
    inside += at >= owner->data() && at < owner->data() + owner->size() ? parts[i].iov_len : 0;
  }
  EXPECT_GT(inside, 99'000);
  pump();
  EXPECT_EQ(stream(id).data, message_of(*owner + "end"));
  EXPECT_EQ(owner.use_count(), 1);
}

TEST_F(Http2, RefusesAtTheHeadersBeforeTheBody) {
  router.on_begin = [](Call&) {
    return std::make_unique<Reply>(refusal(Protocol::grpc, 401, "a token is needed: 100% \"é\"\n"));
  };
  for (const auto path : {unary_path, stream_path}) {
    const auto id = client->open(path, "", false);
    pump();
    EXPECT_EQ(stream(id).headers[":status"], "200");
    EXPECT_EQ(stream(id).headers["content-type"], "application/grpc");
    EXPECT_EQ(status(id), "16");
    EXPECT_EQ(stream(id).headers["grpc-message"], "a token is needed: 100%25 \"%C3%A9\"%0A");
    EXPECT_EQ(stream(id).header_blocks, 1);
    EXPECT_EQ(stream(id).closed, NGHTTP2_NO_ERROR) << "the client need not send its body";
  }
  EXPECT_TRUE(router.finished.empty());
}

TEST_F(Http2, LongErrorsAreCut) {
  const auto id = client->open(unary_path, message_of("x"));
  pump();
  std::string text;
  for (int i = 0; i < 5000; ++i) {
    text += "é";
  }
  connection->reply(*router.calls.at(0), refusal(Protocol::grpc, 400, text), now);
  pump();
  const std::string& message = stream(id).headers["grpc-message"];
  EXPECT_EQ(status(id), "3");
  EXPECT_GT(message.size(), 4000);
  EXPECT_LE(message.size(), 4096);
  EXPECT_EQ(message.size() % 6, 0);
}

TEST_F(Http2, RefusesWrongMessages) {
  const std::map<std::string, std::pair<std::string, std::string>> cases = {
      {"", {"3", "no message was sent"}},
      {"none", {"3", "the message does not begin as gRPC's do"}},
      {std::string(3, '\0'), {"3", "the message was cut off"}},
      {message_of("abc").substr(0, 7), {"3", "the message was cut off"}},
      {message_of("a") + message_of("b"), {"3", "more than one message was sent: this method takes one"}},
      {message_of("a") + "x", {"3", "more than one message was sent: this method takes one"}},
      {"\1" + message_of("a").substr(1),
       {"13", "the message is marked as compressed, and the header grpc-encoding does not say how"}},
      {"\2" + message_of("a").substr(1), {"3", "the message does not begin as gRPC's do"}},
      {std::string("\0\xFF\xFF\xFF\xFF", 5), {"8", "the message has 4294967295 bytes: 67108864 are allowed"}},
  };
  for (const auto& [body, expected] : cases) {
    const auto id = client->open(unary_path, body);
    pump();
    EXPECT_EQ(status(id), expected.first) << expected.second;
    EXPECT_EQ(stream(id).headers["grpc-message"], expected.second);
    EXPECT_EQ(stream(id).headers["grpc-accept-encoding"], "identity,gzip,deflate");
  }
  const auto id = client->open(stream_path, message_of("abc").substr(0, 7));
  pump();
  EXPECT_EQ(stream(id).headers["grpc-message"], "the stream ended within a message");
  EXPECT_TRUE(router.finished.empty());
  EXPECT_EQ(admission->bytes(), 0);
}

TEST_F(Http2, HandsCompressedMessagesOverAsTheyAre) {
  const std::string sent = "\1" + message_of("packed").substr(1);
  for (const char* encoding : {"gzip", "deflate"}) {
    router.calls.clear();
    const auto id = client->open(unary_path, sent, true, {{"grpc-encoding", encoding}});
    pump();
    ASSERT_EQ(router.calls.size(), 1);
    EXPECT_TRUE(router.calls[0]->compressed);
    EXPECT_EQ(router.calls[0]->body.text(), "packed");
    answer(0, "plain");
    pump();
    EXPECT_EQ(stream(id).data, message_of("plain"));
    EXPECT_EQ(stream(id).headers["grpc-accept-encoding"], "identity,gzip,deflate");
  }
  router.calls.clear();
  const auto id = client->open(stream_path, message_of("plain") + sent, false, {{"grpc-encoding", "gzip"}});
  pump();
  EXPECT_FALSE(router.calls.at(0)->compressed) << "each message says it";
  answer(0, "");
  pump();
  EXPECT_TRUE(router.calls.at(0)->compressed);
  client->reset(id);
}

TEST_F(Http2, RefusesEncodingsThatItDoesNotKnow) {
  for (const char* encoding : {"zstd", "gzip,deflate", ""}) {
    const std::vector<std::pair<std::string, std::string>> more{{"grpc-encoding", encoding}};
    const auto id = client->open(unary_path, "\1" + message_of("packed").substr(1), true, more);
    pump();
    EXPECT_EQ(status(id), "12") << encoding;
    EXPECT_EQ(stream(id).headers["grpc-message"],
              std::string("the grpc-encoding '") + encoding +
                  "' is not known: compress messages with gzip or deflate, or send them as they are");
    EXPECT_EQ(stream(id).headers["grpc-accept-encoding"], "identity,gzip,deflate");
    const auto plain = client->open(unary_path, message_of("x"), true, more);
    pump();
    EXPECT_EQ(router.finished.size(), 1) << "nothing is compressed";
    answer(0, "y");
    pump();
    EXPECT_EQ(status(plain), "0");
    router.calls.clear();
    router.finished.clear();
  }
}

TEST_F(Http2, RawContentsAreAligned) {
  for (std::size_t name = 1; name < 9; ++name) {
    const std::string raw = some_bytes(100'000);
    const std::string head = wire_field(1, std::string(name, 'm')) + wire_header(7, raw.size());
    const auto id = client->open(unary_path, message_of(head + raw));
    pump();
    const Call& call = *router.calls.at(0);
    EXPECT_EQ(call.body.text(), head + raw);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(call.body.data() + head.size()) % 64, 0) << name;
    client->reset(id);
    pump();
  }
}

TEST_F(Http2, MemoryOfAMessageIsTakenAtOnce) {
  const std::string body = some_bytes(600'000);
  const auto id = client->open(unary_path, message_of(body).substr(0, 20'000), false);
  pump();
  const std::size_t counted = admission->bytes();
  EXPECT_GE(counted, 16'000) << "what has arrived";
  EXPECT_LT(counted, 40'000) << "and not what was announced";
  client->send(id, message_of(body).substr(20'000), true);
  pump();
  EXPECT_EQ(router.finished.at(0), body);
  client->reset(id);
  pump();
  // The same memory, which is there by now, is counted as a whole.
  client->open(unary_path, message_of(body).substr(0, 20'000), false);
  pump();
  EXPECT_GE(admission->bytes(), 600'000);
}

TEST_F(Http2, BytesOfAllRequestsHaveABudget) {
  limits.memory = 300'000;
  start();
  const auto first = client->open(unary_path, message_of(some_bytes(150'000)), true);
  const auto second = client->open(unary_path, message_of(some_bytes(200'000)), true);
  pump();
  ASSERT_EQ(router.calls.size(), 1);
  const auto [served, refused] =
      router.finished[0].size() == 150'000 ? std::pair(first, second) : std::pair(second, first);
  EXPECT_EQ(status(refused), "14");
  answer(0, "x");
  pump();
  EXPECT_EQ(status(served), "0");
  EXPECT_EQ(admission->bytes(), 0);
}

TEST_F(Http2, AnnouncedBytesAreNotCountedBeforeTheyArrive) {
  const auto id = client->open(unary_path, std::string("\0\3\x93\x87\0", 5) + std::string(1000, 'x'), false);
  pump();
  EXPECT_GT(admission->bytes(), 0);
  EXPECT_LT(admission->bytes(), 100'000);
  client->reset(id);
  pump();
  EXPECT_EQ(admission->bytes(), 0);
}

TEST_F(Http2, AnswersCountUntilTheyAreSent) {
  start(false, 65535);
  const auto id = client->open(unary_path, message_of("x"));
  pump();
  answer(0, some_bytes(1'000'000));
  pump();
  EXPECT_EQ(stream(id).data.size(), 65535);
  EXPECT_EQ(admission->bytes(), 1'000'000);
  client->open_window(0, 2'000'000);
  client->open_window(id, 2'000'000);
  pump();
  EXPECT_EQ(status(id), "0");
  EXPECT_EQ(admission->bytes(), 0);
}

TEST_F(Http2, RequestsOfAStreamAreAnsweredInTurn) {
  router.on_begin = [this](Call& call) {
    call.place = admission->request();
    return nullptr;
  };
  const auto id = client->open(stream_path, message_of("one") + message_of("two"), false, {{"traceparent", "t"}});
  pump();
  EXPECT_EQ(router.finished, std::vector<std::string>{"one"});
  EXPECT_TRUE(router.calls[0]->streamed);
  EXPECT_EQ(*find(router.calls[0]->headers, "traceparent"), "t");
  EXPECT_EQ(admission->requests(), 1);
  answer(0, "first");
  pump();
  EXPECT_EQ(stream(id).data, message_of("first"));
  EXPECT_EQ(router.finished, (std::vector<std::string>{"one", "two"}));
  answer(0, "second");
  EXPECT_EQ(admission->requests(), 0) << "a quiet stream takes no place";
  pump();
  EXPECT_EQ(stream(id).data, message_of("first") + message_of("second"));
  EXPECT_EQ(status(id), "");
  client->send(id, message_of("three"), true);
  pump();
  EXPECT_EQ(status(id), "");
  answer(0, "third");
  pump();
  EXPECT_EQ(stream(id).data, message_of("first") + message_of("second") + message_of("third"));
  EXPECT_EQ(status(id), "0");
  EXPECT_EQ(stream(id).closed, NGHTTP2_NO_ERROR);
  EXPECT_EQ(router.begun.size(), 4) << "at the headers, and for each message";
}

TEST_F(Http2, AnEmptyStreamIsAnswered) {
  const auto id = client->open(stream_path, "");
  pump();
  EXPECT_EQ(status(id), "0");
}

TEST_F(Http2, AnErrorEndsAStream) {
  const auto id = client->open(stream_path, message_of("one") + message_of("two"), false);
  pump();
  answer(0, "first");
  pump();
  connection->reply(*router.calls.at(0), refusal(Protocol::grpc, 404, "no such model"), now);
  pump();
  EXPECT_EQ(stream(id).data, message_of("first"));
  EXPECT_EQ(status(id), "5");
  EXPECT_EQ(stream(id).headers["grpc-message"], "no such model");
  EXPECT_EQ(stream(id).closed, NGHTTP2_NO_ERROR);
  EXPECT_EQ(router.gone_calls, 0);
}

TEST_F(Http2, AMessageOfAStreamMayBeRefused) {
  const auto id = client->open(stream_path, message_of("one") + message_of("two"));
  pump();
  router.on_begin = [](Call&) { return std::make_unique<Reply>(refusal(Protocol::grpc, 503, "too many requests")); };
  answer(0, "first");
  pump();
  EXPECT_EQ(stream(id).data, message_of("first"));
  EXPECT_EQ(status(id), "14");
  EXPECT_EQ(stream(id).headers["grpc-message"], "too many requests");
  EXPECT_EQ(router.finished.size(), 1);
}

TEST_F(Http2, WhatWaitsInAStreamCountsInTheBudget) {
  limits.memory = 200'000;
  start();
  const auto id = client->open(stream_path, message_of("one") + message_of(some_bytes(300'000)));
  pump();
  EXPECT_EQ(router.gone_calls, 1);
  EXPECT_EQ(status(id), "14");
  EXPECT_EQ(admission->bytes(), 0);
}

TEST_F(Http2, WhatWaitsInAStreamIsBoundedByItsWindow) {
  std::string bodies;
  for (int i = 0; i < 3000; ++i) {
    bodies += message_of(std::string(1000, static_cast<char>(i)));
  }
  const auto id = client->open(stream_path, bodies);
  pump();
  EXPECT_LE(stream(id).sent, (1U << 20U) + 1005);
  EXPECT_LE(admission->bytes(), (1U << 20U) + 2000);
  EXPECT_GT(admission->bytes(), 1'000'000);
  for (int i = 0; i < 3000; ++i) {
    ASSERT_EQ(router.calls.size(), 1) << i;
    ASSERT_EQ(router.calls[0]->body.text(), std::string(1000, static_cast<char>(i)));
    answer(0, "x");
    if (i % 100 == 0) {
      pump();
    }
  }
  pump();
  EXPECT_EQ(status(id), "0");
  EXPECT_EQ(stream(id).data.size(), 3000 * 6);
  EXPECT_EQ(admission->bytes(), 0);
}

TEST_F(Http2, AStreamWhoseAnswersAreNotTakenIsNotReadOn) {
  echo();
  start(false, 65535);
  std::string bodies;
  for (int i = 0; i < 900; ++i) {
    bodies += message_of(std::string(1000, 'x'));
  }
  const auto id = client->open(stream_path, bodies);
  pump();
  EXPECT_LT(router.finished.size(), 150);
  client->open_window(0, 2'000'000);
  client->open_window(id, 2'000'000);
  pump();
  EXPECT_EQ(router.finished.size(), 900);
  EXPECT_EQ(stream(id).data, bodies);
  EXPECT_EQ(status(id), "0");
}

TEST_F(Http2, ManySmallMessagesAreAnsweredWithoutRecursion) {
  const auto id = client->open(stream_path, "", false);
  pump();
  echo();
  std::string bodies;
  for (int i = 0; i < 200'000; ++i) {
    bodies += message_of("");
  }
  client->send(id, bodies, true);
  pump();
  EXPECT_EQ(router.finished.size(), 200'000);
  EXPECT_EQ(stream(id).data, bodies);
  EXPECT_EQ(status(id), "0");
}

TEST_F(Http2, ACancelledCallIsGone) {
  const auto first = client->open(unary_path, message_of("x"));
  const auto second = client->open(stream_path, message_of("x") + message_of("y"), false);
  pump();
  const auto calls = router.calls;
  ASSERT_EQ(calls.size(), 2);
  client->reset(first);
  client->reset(second);
  pump();
  EXPECT_EQ(router.gone_calls, 2);
  connection->reply(*calls[0], {}, now);
  connection->reply(*calls[1], {}, now);
  const auto third = client->open(unary_path, message_of("z"));
  pump();
  ASSERT_EQ(router.calls.size(), 1);
  answer(0, "r");
  pump();
  EXPECT_EQ(status(third), "0");
  EXPECT_EQ(stream(first).header_blocks, 0);
}

TEST_F(Http2, CallsOfALostConnectionAreGone) {
  client->open(unary_path, message_of("x"));
  client->open(unary_path, message_of("x").substr(0, 3), false);
  pump();
  connection->received_end(true, now);
  EXPECT_EQ(router.gone_calls, 1);
  EXPECT_TRUE(connection->finished());
  std::array<iovec, 4> parts{};
  EXPECT_EQ(connection->to_send(parts), 0);
  EXPECT_EQ(connection->deadline(), std::nullopt);
  connection.reset();
  EXPECT_EQ(router.gone_calls, 1);
  start();
  client->open(unary_path, message_of("x"));
  pump();
  connection.reset();
  EXPECT_EQ(router.gone_calls, 2);
  EXPECT_EQ(admission->bytes(), 0);
}

TEST_F(Http2, RefusesWhatIsNoGrpc) {
  const auto get = client->request({{":method", "GET"}, {":scheme", "http"}, {":path", "/"}, {":authority", "a"}}, "");
  const auto web = client->request({{":method", "POST"},
                                    {":scheme", "http"},
                                    {":path", unary_path.data()},
                                    {":authority", "a"},
                                    {"content-type", "application/grpc-web"}},
                                   message_of("x"));
  const auto put = client->request({{":method", "PUT"},
                                    {":scheme", "http"},
                                    {":path", unary_path.data()},
                                    {":authority", "a"},
                                    {"content-type", "application/grpc"}},
                                   message_of("x"));
  const auto head =
      client->request({{":method", "HEAD"}, {":scheme", "http"}, {":path", "/"}, {":authority", "a"}}, "");
  const auto proto = client->request({{":method", "POST"},
                                      {":scheme", "http"},
                                      {":path", unary_path.data()},
                                      {":authority", "a"},
                                      {"content-type", "application/grpc+proto"}},
                                     message_of("x"));
  pump();
  EXPECT_EQ(stream(get).headers[":status"], "415");
  EXPECT_EQ(stream(get).data, "This port speaks gRPC: content-type is application/grpc.\n");
  EXPECT_EQ(stream(get).closed, NGHTTP2_NO_ERROR);
  EXPECT_EQ(stream(web).headers[":status"], "415");
  EXPECT_EQ(stream(put).headers[":status"], "405");
  EXPECT_EQ(stream(head).headers[":status"], "415");
  EXPECT_EQ(stream(head).data, "");
  EXPECT_EQ(stream(head).closed, NGHTTP2_NO_ERROR);
  EXPECT_FALSE(stream(proto).closed);
  EXPECT_EQ(router.begun.size(), 1);
}

TEST_F(Http2, RefusesLargeHeadersAndTrailers) {
  limits.header = 2000;
  start();
  const auto id = client->open(unary_path, message_of("x"), true, {{"long", std::string(1900, 'x')}});
  pump();
  EXPECT_EQ(status(id), "8");
  EXPECT_TRUE(router.begun.empty());
  const auto second = client->open(unary_path, message_of("x"), false);
  pump();
  const std::string value(1900, 'x');
  const nghttp2_nv trailer{reinterpret_cast<std::uint8_t*>(const_cast<char*>("long")),
                           reinterpret_cast<std::uint8_t*>(const_cast<char*>(value.data())), 4, value.size(),
                           NGHTTP2_NV_FLAG_NONE};
  client->table->submit_trailer(client->session, second, &trailer, 1);
  pump();
  EXPECT_EQ(status(second), "8");
  EXPECT_TRUE(router.finished.empty());
}

TEST_F(Http2, HeadsCountInTheBudget) {
  limits.memory = 300'000;
  start();
  std::vector<std::int32_t> ids;
  ids.reserve(10);
  for (int i = 0; i < 10; ++i) {  // of which all but the first are some bytes on the wire
    ids.push_back(
        client->open(unary_path, "", false, {{"long", std::string(3900, 'x')}, {"more", std::string(39'000, 'x')}}));
  }
  pump();
  EXPECT_GT(admission->bytes(), 80'000);
  EXPECT_LE(admission->bytes(), limits.memory);
  EXPECT_LT(router.begun.size(), 4);
  EXPECT_EQ(status(ids.back()), "14");
  for (const std::int32_t id : ids) {
    client->reset(id);
  }
  pump();
  EXPECT_EQ(admission->bytes(), 0);
}

TEST_F(Http2, TheOnlyCallOfAConnectionNeedsNoBudgetForASmallHead) {
  limits.memory = 1000;
  start();
  Admission::Bytes others(*admission);
  ASSERT_TRUE(others.grow_to(1000));
  const auto first = client->open(unary_path, message_of(""), true);
  pump();
  ASSERT_EQ(router.calls.size(), 1);
  const auto second = client->open(unary_path, message_of(""), true);
  pump();
  EXPECT_EQ(status(second), "14");
  answer(0, "");
  pump();
  EXPECT_EQ(status(first), "0");
}

TEST_F(Http2, StreamsOfAConnectionAreBounded) {
  limits.streams = 3;
  start();
  pump();
  for (int i = 0; i < 5; ++i) {
    client->open(unary_path, message_of("x"));
  }
  pump();
  EXPECT_EQ(router.calls.size(), 3) << "the client knows the limit";
  answer(0, "x");
  pump();
  EXPECT_EQ(router.calls.size(), 3);
}

TEST_F(Http2, AnHttp1ClientIsClosed) {
  feed("POST /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n");
  EXPECT_TRUE(connection->finished());
}

// Bytes of a client that has sent its preface and settings, and knows the server's.
class Http2Floods : public Http2 {
 protected:
  void SetUp() override {
    Http2::SetUp();
    pump();
  }

  // Whether the server has said that it is enough, and closes.
  bool calmed() {
    client_reads(std::string_view::npos);
    return connection->finished() && (!client->goaway || *client->goaway == NGHTTP2_ENHANCE_YOUR_CALM);
  }

  /// A request's headers without a body, by HPACK's static table and literals.
  static std::string headers(std::uint32_t id) {
    const auto literal = [](char index, std::string_view value) {
      return std::string(1, index) + static_cast<char>(value.size()) + std::string(value);
    };
    const std::string block =
        "\x83\x86" + literal(0x04, unary_path) + literal(0x01, "a") + ("\x0F" + literal(0x10, "application/grpc"));
    return frame(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, id, block);
  }
};

TEST_F(Http2Floods, ResetsAreBounded) {
  int requests = 0;
  router.on_begin = [&](Call&) {
    ++requests;
    return nullptr;
  };
  std::uint32_t id = 1;
  for (; id < 100'001 && !connection->finished(); id += 2) {
    feed(headers(id) + frame(NGHTTP2_RST_STREAM, 0, id, std::string("\0\0\0\x8", 4)));
    take();
  }
  EXPECT_TRUE(connection->finished());
  EXPECT_GT(requests, 500);
  EXPECT_LT(requests, 2100);
}

TEST_F(Http2Floods, CancelsOfAClientThatIsAnsweredAreNotBounded) {
  echo();
  for (std::uint32_t id = 1; id < 20'001; id += 4) {
    ASSERT_FALSE(connection->finished()) << id;
    feed(headers(id) + frame(NGHTTP2_RST_STREAM, 0, id, std::string("\0\0\0\x8", 4)));
    feed(headers(id + 2) + frame(NGHTTP2_DATA, NGHTTP2_FLAG_END_STREAM, id + 2, message_of("x")));
    take();
  }
  EXPECT_EQ(router.finished.size(), 5000);
}

TEST_F(Http2Floods, FramesThatAskForNothingAreBounded) {
  const std::vector<std::string> frames = {
      frame(NGHTTP2_PING, 0, 0, "12345678"),
      frame(NGHTTP2_PING, NGHTTP2_FLAG_ACK, 0, "12345678"),
      frame(NGHTTP2_SETTINGS, 0, 0, std::string("\0\4\0\0\1\0", 6)),
      frame(NGHTTP2_PRIORITY, 0, 3, std::string("\0\0\0\0\1", 5)),
      frame(NGHTTP2_WINDOW_UPDATE, 0, 0, std::string("\0\0\0\1", 4)),
      frame(NGHTTP2_DATA, 0, 1, ""),
      frame(NGHTTP2_DATA, NGHTTP2_FLAG_PADDED, 1, std::string("\3\0\0\0", 4)),
  };
  for (const std::string& each : frames) {
    start();
    pump();
    feed(headers(1));
    int sent = 0;
    for (; sent < 10'000 && !connection->finished(); ++sent) {
      feed(each);
      take();
    }
    EXPECT_TRUE(connection->finished()) << static_cast<int>(each[3]);
    EXPECT_GT(sent, 1000) << static_cast<int>(each[3]);
    EXPECT_LT(sent, 3000) << static_cast<int>(each[3]);
  }
}

TEST_F(Http2Floods, PingsNowAndThenAreAnswered) {
  for (int i = 0; i < 10'000; ++i) {
    client->functions.submit_ping(client->session, NGHTTP2_FLAG_NONE, nullptr);
    pump();
    client->open(unary_path, message_of("x"));
    pump();
    ASSERT_EQ(router.calls.size(), 1) << i;
    answer(0, "y");
    pump();
  }
  EXPECT_EQ(client->pings, 10'000);
}

TEST_F(Http2Floods, AClientThatReadsNothingIsNotReadOn) {
  std::string pings;
  for (int i = 0; i < 100; ++i) {
    pings += frame(NGHTTP2_PING, 0, 0, "12345678");
  }
  for (int i = 0; i < 10'000 && !connection->finished() && !connection->room().empty(); ++i) {
    std::array<iovec, 4> parts{};
    feed(pings);
    connection->to_send(parts);
  }
  EXPECT_TRUE(connection->finished() || connection->room().empty());
}

TEST_F(Http2Floods, ContinuationsWithoutEndAreBounded) {
  std::size_t fed = feed(frame(NGHTTP2_HEADERS, 0, 1, "\x83\x86"));
  const std::string more = frame(NGHTTP2_CONTINUATION, 0, 1, std::string(16'000, '\x83'));
  for (int i = 0; i < 10'000 && !connection->finished(); ++i) {
    fed += feed(more);
    take();
  }
  EXPECT_TRUE(connection->finished());
  EXPECT_LT(fed, 1'000'000);
}

TEST_F(Http2Floods, ManyFieldsAreReadNoFurther) {
  std::string fields = "\x83\x86";
  while (fields.size() < 200'000) {
    fields += std::string("\0\1x\x7", 4) + "1234567";
  }
  feed(frame(NGHTTP2_HEADERS, 0, 1, fields));
  take();
  EXPECT_FALSE(connection->finished());
  feed(frame(NGHTTP2_CONTINUATION, 0, 1, fields.substr(2)));
  EXPECT_TRUE(calmed());
}

TEST_F(Http2Floods, RefusedRequestsOfAClientThatReadsNothingAreNotReadOn) {
  limits.streams = 100'000;
  start();
  pump();
  router.on_begin = [](Call&) { return std::make_unique<Reply>(refusal(Protocol::grpc, 401, std::string(500, 'x'))); };
  std::array<iovec, 4> parts{};
  for (std::uint32_t id = 1; id < 100'001 && !connection->room().empty(); id += 2) {
    feed(headers(id));
    connection->to_send(parts);
  }
  ASSERT_FALSE(connection->finished());
  EXPECT_TRUE(connection->room().empty());
  EXPECT_LT(router.begun.size(), 20'000);
  take();
  EXPECT_FALSE(connection->room().empty()) << "as it has read them";
}

TEST_F(Http2Floods, AFragmentOfHeadersIsWaitedForNotForEver) {
  feed(frame(NGHTTP2_HEADERS, 0, 1, "\x83\x86"));
  EXPECT_EQ(connection->deadline(), now + 60s);
  pass(60s);
  EXPECT_TRUE(calmed());
}

TEST_F(Http2Floods, AWindowOfZeroEndsTheConnection) {
  feed(headers(1) + frame(NGHTTP2_DATA, NGHTTP2_FLAG_END_STREAM, 1, message_of("x")));
  ASSERT_EQ(router.calls.size(), 1);
  feed(frame(NGHTTP2_WINDOW_UPDATE, 0, 1, std::string(4, '\0')));
  take();
  EXPECT_TRUE(connection->finished());
  connection.reset();
  EXPECT_EQ(router.gone_calls, 1);
}

TEST_F(Http2Floods, AnythingMayArriveCutAnywhere) {
  echo();
  std::mt19937 random(5);  // NOLINT(bugprone-random-generator-seed): the same changes in every run
  for (int round = 0; round < 3000; ++round) {
    start();
    pump();
    std::string bytes = headers(1) + frame(NGHTTP2_DATA, NGHTTP2_FLAG_END_STREAM, 1, message_of("x")) + headers(3) +
                        frame(NGHTTP2_PING, 0, 0, "12345678") + frame(NGHTTP2_DATA, 0, 3, message_of("yy")) +
                        frame(NGHTTP2_RST_STREAM, 0, 3, std::string("\0\0\0\x8", 4));
    for (unsigned changes = random() % 4; changes > 0; --changes) {
      char& byte = bytes[random() % bytes.size()];
      byte = static_cast<char>(static_cast<unsigned char>(byte) ^ 1U << random() % 8);
    }
    feed(bytes, 1 + random() % 40);
    for (int hour = 0; hour < 3; ++hour) {
      take();
      pass(1h);
    }
    take();
    ASSERT_TRUE(connection->finished()) << round;
  }
}

TEST_F(Http2, ARequestMustArriveInTime) {
  const auto unary = client->open(unary_path, message_of("abc").substr(0, 6), false);
  const auto quiet = client->open(stream_path, "", false);
  pump();
  EXPECT_EQ(connection->deadline(), now + 60s);
  pass(59s);
  pump();
  EXPECT_EQ(status(unary), "");
  pass(1s);
  pump();
  EXPECT_EQ(status(unary), "4");
  EXPECT_EQ(status(quiet), "") << "a stream may be quiet between its requests";
  client->send(quiet, message_of("abc").substr(0, 6));
  pump();
  EXPECT_EQ(connection->deadline(), now + 60s);
  pass(60s);
  pump();
  EXPECT_EQ(status(quiet), "4");
  EXPECT_EQ(admission->bytes(), 0);
}

TEST_F(Http2, ARequestUnderWayHasAllTimes) {
  const auto id = client->open(unary_path, message_of("x"));
  pump();
  EXPECT_EQ(connection->deadline(), std::nullopt);
  pass(3600s);
  answer(0, "x");
  pump();
  EXPECT_EQ(status(id), "0");
}

TEST_F(Http2, AnAnswerMustBeTakenInTime) {
  start(false, 65535);
  const auto id = client->open(unary_path, message_of("x"));
  pump();
  answer(0, some_bytes(200'000));
  pass(30s);
  pump();
  EXPECT_EQ(stream(id).data.size(), 65535);
  EXPECT_EQ(connection->deadline(), now + 30s);
  const auto take_more = [&](std::int32_t bytes) {
    client->open_window(0, bytes);
    client->open_window(id, bytes);
    pump();
  };
  pass(29s);
  take_more(1);
  EXPECT_EQ(connection->deadline(), now + 60s) << "it took 64 KiB";
  pass(59s);
  take_more(1000);
  EXPECT_EQ(stream(id).data.size(), 66536);
  EXPECT_EQ(connection->deadline(), now + 1s) << "which is too little";
  pass(1s);
  pump();
  EXPECT_EQ(stream(id).closed, NGHTTP2_CANCEL);
  EXPECT_EQ(admission->bytes(), 0);
  EXPECT_FALSE(connection->finished());
}

TEST_F(Http2, AClientThatReadsTooLittleIsClosed) {
  start(true, 1U << 30U);
  client->open(unary_path, message_of("x"));
  client->open_window(0, 1 << 30);
  pump();
  answer(0, some_bytes(2'000'000));
  client->open(unary_path, message_of("y"));
  client_sends(std::string_view::npos);
  EXPECT_EQ(router.calls.size(), 1);
  constexpr std::size_t enough = std::size_t{64} << 10;
  pass(59s);
  EXPECT_EQ(take(enough).size(), enough);
  EXPECT_EQ(connection->deadline(), now + 60s);
  pass(59s);
  EXPECT_EQ(take(enough - 1).size(), enough - 1);
  EXPECT_EQ(connection->deadline(), now + 1s);
  pass(1s);
  EXPECT_TRUE(connection->finished());
  EXPECT_EQ(take(), "");
  EXPECT_EQ(router.gone_calls, 1);
}

TEST_F(Http2, AQuietConnectionIsClosed) {
  EXPECT_EQ(connection->deadline(), now + 75s);
  pass(10s);
  const auto id = client->open(unary_path, message_of("x"));
  pump();
  pass(100s);
  answer(0, "x");
  pump();
  EXPECT_EQ(status(id), "0");
  EXPECT_EQ(connection->deadline(), now + 75s);
  pass(75s);
  pump();
  EXPECT_EQ(client->goaway, NGHTTP2_NO_ERROR);
  EXPECT_TRUE(connection->finished());
}

TEST_F(Http2, TheEndAnswersWhatIsUnderWay) {
  const auto unary = client->open(unary_path, message_of("x"));
  const auto late = client->open(unary_path, message_of("abc").substr(0, 6), false);
  const auto busy = client->open(stream_path, message_of("x") + message_of("y"), false);
  const auto quiet = client->open(stream_path, "", false);
  const auto never = client->open(unary_path, "", false);
  pump();
  connection->end(now);
  connection->end(now);
  pump();
  EXPECT_EQ(client->goaway, NGHTTP2_NO_ERROR);
  EXPECT_EQ(status(quiet), "14");
  EXPECT_EQ(stream(quiet).headers["grpc-message"], "the server ends");
  EXPECT_FALSE(connection->finished());
  client->send(late, message_of("abc").substr(6), true);
  pump();
  ASSERT_EQ(router.calls.size(), 3);
  while (!router.calls.empty()) {
    answer(0, "r");
    pump();
  }
  EXPECT_EQ(status(unary), "0");
  EXPECT_EQ(status(late), "0");
  EXPECT_EQ(stream(busy).data, message_of("r") + message_of("r"));
  EXPECT_EQ(status(busy), "14");
  EXPECT_FALSE(connection->finished());
  pass(13s);
  pump();
  EXPECT_EQ(status(never), "14");
  EXPECT_TRUE(connection->finished());
}

TEST_F(Http2, AQuietConnectionEndsAtOnce) {
  pump();
  connection->end(now);
  pump();
  EXPECT_EQ(client->goaway, NGHTTP2_NO_ERROR);
  EXPECT_TRUE(connection->finished());
}

TEST(Nghttp2, SaysWhatIsMissing) {
  EXPECT_THROW(load_nghttp2("libnghttp2-of-nobody.so"), Error);
  try {
    load_nghttp2("libdl.so.2");
    FAIL() << "it has no function of nghttp2";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::library);
    EXPECT_NE(std::string(error.what()).find("has no nghttp2_"), std::string::npos) << error.what();
  }
}

TEST(Nghttp2, TheFirstLibraryThatCanBeUsedIsTaken) {
  EXPECT_NE(load_nghttp2({"libnghttp2-of-nobody.so", "libdl.so.2", "libnghttp2.so.14"}).session_del, nullptr);
  try {
    load_nghttp2({"libnghttp2-of-nobody.so", "libdl.so.2"});
    FAIL() << "none of them is nghttp2";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("libnghttp2-of-nobody.so"), std::string::npos) << error.what();
  }
}

TEST(Nghttp2, TheBundledOneLiesBesideThisProgram) {
  const std::string path = bundled_nghttp2();
  EXPECT_TRUE(path.ends_with("/libortmulti_nghttp2.so")) << path;
  EXPECT_EQ(std::filesystem::canonical(path.substr(0, path.rfind('/'))),
            std::filesystem::canonical("/proc/self/exe").parent_path());
}

}  // namespace
}  // namespace ortmulti::serve
