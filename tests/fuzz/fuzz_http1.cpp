// Any bytes as requests of HTTP/1.1: however they are cut, and whenever the router answers and the client takes what is
// sent, the same requests reach the router and the same answers the client. Clients that go, deadlines and the server's
// end at any moment leave no call unanswered that the router was not told of, and no byte counted.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/serve/connection.hpp"
#include "require.hpp"

namespace {

namespace serve = ortmulti::serve;

constexpr std::string_view fragments[] = {
    "POST /v2/models/m/infer HTTP/1.1\r\n",
    "GET /a?b HTTP/1.1\r\nHost: a\r\n\r\n",
    "HEAD http://b/ HTTP/1.0\r\n",
    "Host: a\r\n",
    "Content-Length: 5\r\n",
    "Content-Length: 40000\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Connection: close\r\n",
    "Connection: keep-alive\r\n",
    "Expect: 100-continue\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    "X-Name: value\r\n",
    "\r\n",
    "\r\n\r\n",
    "5\r\nhello\r\n",
    "4e20;a=b\r\n",
    "0\r\n\r\n",
    "0\r\nA: b\r\n\r\n",
    "HTTP/1.1",
    "Origin: http://a\r\n",
};

/// Beyond the limits below; what is larger takes time and shows nothing else.
constexpr std::size_t most_text = 60'000;

/// Bytes stand for themselves, for what requests are made of, or for many bytes.
std::string requests_of(std::span<const std::uint8_t> data) {
  std::string text;
  for (const std::uint8_t byte : data.first(std::min<std::size_t>(data.size(), 200))) {
    if (text.size() >= most_text) {
      break;
    }
    if (byte >= 250) {
      text.append(20'000, static_cast<char>('a' + byte % 2));
    } else if (byte < 128 || byte >= 240) {
      text += static_cast<char>(byte);
    } else {
      text += fragments[(byte - 128) % std::size(fragments)];
    }
  }
  return text;
}

class Server final : public serve::Router {
 public:
  Server() : admission_(limits()), buffers_(std::size_t{1} << 20) {
    connection_ = serve::make_http1({*this, admission_, buffers_}, "127.0.0.1 1", 1, now_);
  }

  std::unique_ptr<serve::Reply> begin(serve::Call& call) override {
    return call.path == "/v" ? std::make_unique<serve::Reply>(serve::refusal(serve::Protocol::http, 401, "no"))
                             : nullptr;
  }
  void finish(std::shared_ptr<serve::Call> call) override {
    require(call_ == nullptr, "two calls at a time");
    require(call->body.size() <= limits().body, "a body that is too large");
    calls += call->method + " " + call->path + "?" + call->query + "\n";
    for (const auto& [name, value] : call->headers) {
      calls.append(name).append(": ").append(value).append("\n");
    }
    calls += std::string(call->body.text()) + "\n";
    call_ = std::move(call);
    if (at_once) {
      answer();
    }
  }
  void gone(const std::shared_ptr<serve::Call>& call) override {
    require(call != nullptr && call == call_, "a call that the router does not have");
    call_.reset();
  }

  bool waits() const { return call_ != nullptr; }
  void answer() {
    const std::shared_ptr<serve::Call> call = std::move(call_);
    serve::Reply reply;
    reply.headers.emplace_back("name", call->path);
    reply.body.push_back(serve::piece_of(call->method));
    reply.body.push_back(serve::piece_of(std::string(call->body.text())));
    connection_->reply(*call, std::move(reply), now_);
  }
  /// How many of these bytes were read: no more than `most`.
  std::size_t read(std::string_view text, std::size_t most) {
    const std::span<std::byte> room = connection_->room();
    const std::size_t size = std::min({room.size(), text.size(), most});
    if (size > 0) {
      std::memcpy(room.data(), text.data(), size);
      connection_->received(size, now_);
    }
    return size;
  }
  bool take(std::size_t most) {
    std::array<iovec, 2> parts{};
    const std::size_t count = connection_->to_send(parts);
    std::size_t taken = 0;
    for (const iovec& part : std::span(parts).first(count)) {
      require(part.iov_len > 0, "an empty part");
      const std::size_t size = std::min(part.iov_len, most - taken);
      output.append(static_cast<const char*>(part.iov_base), size);
      taken += size;
    }
    if (taken > 0) {
      connection_->sent(taken, now_);
    }
    return taken > 0;
  }
  void lose(bool entirely) { connection_->received_end(entirely, now_); }
  void end() { connection_->end(now_); }
  bool finished() const { return connection_->finished(); }
  /// Waits until the next deadline. False: there is none.
  bool wait() {
    const auto due = connection_->deadline();
    if (due) {
      require(*due >= now_, "a deadline that is over");
      now_ = *due;
      connection_->on_time(now_);
    }
    return due.has_value();
  }
  /// Frees the connection.
  void close() {
    connection_.reset();
    call_.reset();
    require(admission_.bytes() == 0, "bytes are still counted");
  }

  bool at_once = false;
  std::string calls;
  std::string output;

 private:
  static serve::Limits limits() {
    serve::Limits limits;
    limits.header = 2000;
    limits.body = 50'000;
    return limits;
  }

  serve::Admission admission_;
  serve::BufferPool buffers_;
  std::shared_ptr<serve::Call> call_;
  std::unique_ptr<serve::Connection> connection_;
  serve::Connection::Clock::time_point now_{std::chrono::hours(1)};
};

using Random = std::minstd_rand;

std::size_t some(Random& random) {
  constexpr std::size_t sizes[] = {1, 2, 3, 17, 100, 5000, 1'000'000};
  return sizes[random() % std::size(sizes)];
}

/// Reads, answers and sends in any order until nothing is left to do.
void play(Server& server, std::string_view text, Random& random) {
  do {
    if (random() % 2 == 0 && server.waits()) {
      server.answer();
    }
    if (random() % 2 == 0) {
      server.take(some(random));
    }
    text.remove_prefix(server.read(text, some(random)));
  } while (server.waits() || (!text.empty() && !server.finished()));
  while (server.take(1'000'000)) {
    while (server.waits()) {
      server.answer();
    }
  }
}

void play_with_ends(Server& server, std::string_view text, Random& random) {
  bool all_read = false;
  for (int turns = 0; turns < 1000 && !server.finished(); ++turns) {
    switch (random() % 8) {
      case 0:
        if (server.waits()) {
          server.answer();
        }
        break;
      case 1:
      case 2:
        server.take(some(random));
        break;
      case 3:
        if (random() % 40 == 0) {
          all_read = true;
          server.lose(random() % 2 == 0);
        } else if (random() % 40 == 0) {
          server.end();
        } else if (random() % 20 == 0) {
          server.wait();
        }
        break;
      default:
        if (!all_read) {
          text.remove_prefix(server.read(text, some(random)));
        }
    }
  }
  server.end();
  for (int turns = 0; !server.finished() || server.take(1'000'000); ++turns) {
    require(turns < 1000, "it does not end");
    if (server.waits()) {
      server.answer();
    } else if (!server.take(1'000'000)) {
      require(server.finished() || server.wait(), "nothing that it waits for");
    }
  }
  require(!server.waits(), "a call that nobody waits for");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text = requests_of({data, size});
  Server whole;
  whole.at_once = true;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t read = whole.read(rest, rest.size());
    rest.remove_prefix(read);
    if (!whole.take(1'000'000) && read == 0) {
      break;
    }
    while (whole.take(1'000'000)) {
    }
  }
  require(whole.output.find_first_of('\0') == std::string::npos || text.find('\0') != std::string::npos, "a zero byte");
  Random random(static_cast<Random::result_type>(size * 31 + (size > 0 ? data[size - 1] : 0)));
  Server cut;
  play(cut, text, random);
  require(cut.calls == whole.calls, "other calls");
  require(cut.output == whole.output, "other answers");
  cut.close();
  Server ending;
  play_with_ends(ending, text, random);
  ending.close();
  whole.close();
  return 0;
}
