#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/serve/admission.hpp"
#include "core/serve/buffer.hpp"
#include "core/serve/call.hpp"
#include "core/serve/connection.hpp"

namespace ortmulti::tests::http1 {

using serve::Admission;
using serve::BufferPool;
using serve::Call;
using serve::Connection;
using serve::Limits;
using serve::Reply;

constexpr std::size_t everything = std::numeric_limits<std::size_t>::max();

inline Reply text_reply(std::string text) {
  Reply reply;
  reply.body.push_back(serve::piece_of(std::move(text)));
  return reply;
}

inline std::string repeated(std::string_view text, std::size_t count) {
  std::string result;
  while (count-- > 0) {
    result += text;
  }
  return result;
}

/// A router, a connection, and a client that has sent and received so much.
class Exchange final : public serve::Router {
 public:
  explicit Exchange(const Limits& limits = {}, const std::string& peer = "192.0.2.1 5000")
      : admission(limits),
        buffers(std::size_t{1} << 30),
        connection(serve::make_http1({*this, admission, buffers}, peer, 7, now)) {}

  std::unique_ptr<Reply> begin(Call& call) override {
    begun.push_back(call.path);
    return refuses ? std::make_unique<Reply>(refuses()) : nullptr;
  }
  void finish(std::shared_ptr<Call> call) override {
    calls.push_back(call->method + " " + call->path + "?" + call->query + " [" + std::string(call->body.text()) + "]");
    pending = std::move(call);
    if (at_once) {
      answer(text_reply("answer to " + calls.back()));
    }
  }
  void gone(const std::shared_ptr<Call>& call) override { left.push_back(call->path); }

  void answer(Reply reply) {
    const std::shared_ptr<Call> call = std::move(pending);
    ASSERT_NE(call, nullptr);
    connection->reply(*call, std::move(reply), now);
  }

  /// Sends it in reads of so many bytes at most. False: the connection does not read all of it.
  bool send(std::string_view text, std::size_t most = everything) {
    while (!text.empty()) {
      const auto room = connection->room();
      if (room.empty()) {
        return false;
      }
      const std::size_t size = std::min({room.size(), text.size(), most});
      std::memcpy(room.data(), text.data(), size);
      text.remove_prefix(size);
      connection->received(size, now);
      if (takes) {
        take();
      }
    }
    return true;
  }

  /// Takes so many bytes of the output, at most.
  void take(std::size_t most = everything) {
    std::array<iovec, 3> parts{};
    for (std::size_t count = connection->to_send(parts); count > 0 && most > 0; count = connection->to_send(parts)) {
      std::size_t taken = 0;
      for (const iovec& part : std::span(parts).first(count)) {
        const std::size_t size = std::min(part.iov_len, most - taken);
        output.append(static_cast<const char*>(part.iov_base), size);
        taken += size;
      }
      most -= taken;
      connection->sent(taken, now);
    }
  }

  bool has_output() const {
    std::array<iovec, 1> parts{};
    return connection->to_send(parts) > 0;
  }

  /// When the next deadline is, from now on; calls on_time() then.
  double to_deadline() {
    const auto due = connection->deadline();
    if (!due) {
      return -1;
    }
    const double seconds = std::chrono::duration<double>(*due - now).count();
    now = *due;
    connection->on_time(now);
    return seconds;
  }

  int status() const { return output.size() < 12 ? 0 : std::stoi(output.substr(9, 3)); }
  bool closing() const { return output.find("\r\nconnection: close\r\n") != std::string::npos; }

  Connection::Clock::time_point now{std::chrono::hours(1000)};
  Admission admission;
  BufferPool buffers;
  bool at_once = true;
  bool takes = true;
  std::function<Reply()> refuses;
  std::vector<std::string> begun, calls, left;
  std::shared_ptr<Call> pending;
  std::string output;
  std::unique_ptr<Connection> connection;
};

/// What comes of some requests, read in pieces that end at `cut` and have so many bytes at most.
inline std::string outcome(const std::string& requests, std::size_t cut, std::size_t most) {
  Limits limits;
  limits.header = 600;
  limits.body = 40;
  Exchange exchange(limits);
  exchange.send(std::string_view(requests).substr(0, cut), most) &&
      exchange.send(std::string_view(requests).substr(cut), most);
  std::string result = exchange.output;
  for (const std::string& call : exchange.calls) {
    result += call + "\n";
  }
  return result + std::to_string(exchange.admission.bytes());
}

inline testing::AssertionResult same_however_cut(const std::string& requests) {
  const std::string whole = outcome(requests, 0, everything);
  for (std::size_t cut = 1; cut <= requests.size(); ++cut) {
    if (outcome(requests, cut, everything) != whole) {
      return testing::AssertionFailure() << "cut at " << cut << ": " << outcome(requests, cut, everything) << "\nnot\n"
                                         << whole;
    }
  }
  for (const std::size_t most : {1, 2, 3, 7}) {
    if (outcome(requests, 0, most) != whole) {
      return testing::AssertionFailure() << "in pieces of " << most << ": " << outcome(requests, 0, most) << "\nnot\n"
                                         << whole;
    }
  }
  return testing::AssertionSuccess();
}

inline std::string get(const std::string& path, const std::string& headers = "") {
  return "GET " + path + " HTTP/1.1\r\nHost: a\r\n" + headers + "\r\n";
}

inline std::string post(const std::string& body, const std::string& headers = "") {
  return "POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + headers + "\r\n" +
         body;
}

inline std::string chunked(const std::string& chunks) {
  return "POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks;
}

inline std::string answer_to(const std::string& call) {
  const std::string body = "answer to " + call;
  return "HTTP/1.1 200 OK\r\ncontent-length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

}  // namespace ortmulti::tests::http1
