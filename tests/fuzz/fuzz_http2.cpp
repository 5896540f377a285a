// Any bytes of a client of HTTP/2, behind its preface: they are answered or the connection ends. It never reads on
// without end, every call that was handed over is answered or gone, and all that was counted is given back. The first
// byte says how the bytes are cut and when calls are answered; bytes from 240 on stand for frames that are right, 239
// for headers and 238 for a frame that the next bytes are the content of.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/serve/connection.hpp"
#include "require.hpp"

namespace {

using namespace ortmulti::serve;
using namespace std::string_view_literals;

std::string frame(int type, int flags, std::uint32_t stream, std::string_view payload) {
  std::string bytes{'\0', static_cast<char>(payload.size() >> 8U), static_cast<char>(payload.size()),
                    static_cast<char>(type), static_cast<char>(flags)};
  for (const unsigned shift : {24U, 16U, 8U, 0U}) {
    bytes += static_cast<char>(stream >> shift);
  }
  return bytes.append(payload);
}

/// HPACK's static table and literals.
std::string headers(int flags, std::uint32_t stream, std::string_view path) {
  return frame(1, flags, stream,
               "\x83\x86\x04" + std::string(1, static_cast<char>(path.size())) + std::string(path) + "\x01\x01" +
                   "a\x0F\x10\x10" + "application/grpc");
}

std::string bytes_of(const std::uint8_t* data, std::size_t size) {
  constexpr std::string_view unary = "/a";
  constexpr std::string_view refused = "/a!";
  constexpr std::string_view stream = "/inference.GRPCInferenceService/ModelStreamInfer";
  std::string bytes;
  std::uint32_t last = 1;  // an even one is wrong
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const auto next = [&](std::size_t count) {
    const std::string_view part = rest.substr(0, count);
    rest.remove_prefix(part.size());
    return part;
  };
  while (!rest.empty()) {
    const char byte = next(1)[0];
    switch (static_cast<std::uint8_t>(byte)) {
      case 238: {  // type, flags and length, which also says whether it is of the connection
        const std::string_view kind = next(3);
        if (kind.size() == 3) {
          bytes += frame(kind[0] & 0xF, kind[1], kind[2] < 0 ? 0 : last, next(kind[2] & 0x3FU));
        }
        break;
      }
      case 239: {  // fields, in any of HPACK's forms
        const std::string_view length = next(1);
        bytes += frame(1, 4, last += 2, next(length.empty() ? 0 : length[0] & 0x7FU));
        break;
      }
      case 240:
        bytes += headers(4, last += 2, unary);
        break;
      case 241:
        bytes += headers(4, last += 2, stream);
        break;
      case 242:
        bytes += headers(4, last += 2, refused);
        break;
      case 243:
        bytes += headers(0, last += 2, unary);
        break;
      case 244:
        bytes += headers(5, last, unary);
        break;  // trailers, or a request
      case 245:
        bytes += frame(0, 0, last, "\0\0\0\0\3abc"sv);
        break;
      case 246:
        bytes += frame(0, 1, last, "\0\0\0\0\3abc"sv);
        break;
      case 247:
        bytes += frame(0, 1, last, "");
        break;
      case 248:
        bytes += frame(0, 0, last, "\0\0\0\xFF\xF0"sv) + frame(0, 0, last, std::string(16000, 'x'));
        break;
      case 249:
        bytes += frame(0, 0, last, std::string(2000, '\0'));
        break;  // empty messages
      case 250:
        bytes += frame(3, 0, last, "\0\0\0\x8"sv);
        break;
      case 251:
        bytes += frame(3, 0, last - 2, "\0\0\0\x8"sv);
        break;
      case 252:
        bytes += frame(8, 0, last, "\0\0\x10\0"sv) + frame(8, 0, 0, "\0\0\x10\0"sv);
        break;
      case 253:
        bytes += frame(4, 0, 0, "\0\4\0\0\0\1"sv);
        break;  // windows of one byte
      case 254:
        bytes += frame(9, 4, last, "\x83"sv);
        break;
      case 255:
        bytes += frame(6, 0, 0, "12345678");
        break;
      default:
        bytes += byte;
        break;
    }
  }
  return bytes;
}

class Calls : public Router {
 public:
  std::unique_ptr<Reply> begin(Call& call) override {
    call.place = admission->request();
    return call.path.ends_with('!') ? std::make_unique<Reply>(refusal(Protocol::grpc, 401, "no")) : nullptr;
  }
  void finish(std::shared_ptr<Call> call) override {
    calls.push_back(std::move(call));
    if (at_once) {
      answer_one();
    }
  }
  void gone(const std::shared_ptr<Call>& call) override {
    require(std::erase(calls, call) == 1, "gone that is not under way");
  }
  void answer_one() {
    if (!calls.empty()) {
      const std::shared_ptr<Call> call = std::move(calls.back());
      calls.pop_back();
      Reply reply;
      reply.body.push_back(piece_of(std::string(call->body.text())));
      connection->reply(*call, std::move(reply), now);
    }
  }

  Admission* admission = nullptr;
  Connection* connection = nullptr;
  bool at_once = false;
  Connection::Clock::time_point now{std::chrono::hours(1)};
  std::vector<std::shared_ptr<Call>> calls;
};

void send_all(Connection& connection, Connection::Clock::time_point now) {
  std::array<iovec, 16> parts{};
  for (std::size_t count = connection.to_send(parts); count > 0; count = connection.to_send(parts)) {
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < count; ++i) {
      bytes += parts[i].iov_len;
    }
    require(bytes > 0, "nothing to send is something");
    connection.sent(bytes, now);
  }
}

/// Cut into so many bytes each; after many pieces, which take time, all that is left is one.
void feed(Connection& connection, std::string_view bytes, std::size_t cut, Calls& calls) {
  for (int pieces = 0; !bytes.empty() && !connection.finished(); ++pieces) {
    const std::span<std::byte> room = connection.room();
    if (room.empty()) {
      send_all(connection, calls.now);
      require(!connection.room().empty() || connection.finished(), "it never reads on");
      continue;
    }
    const std::size_t size = std::min({pieces < 200 ? cut : bytes.size(), room.size(), bytes.size()});
    std::memcpy(room.data(), bytes.data(), size);
    connection.received(size, calls.now);
    bytes.remove_prefix(size);
    calls.answer_one();
    send_all(connection, calls.now);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  Limits limits;
  limits.memory = std::size_t{4} << 20;
  limits.body = std::size_t{1} << 20;
  Admission admission(limits);
  BufferPool buffers(std::size_t{1} << 20);
  Calls calls;
  const auto connection = make_http2({calls, admission, buffers}, "peer", 1, calls.now);
  calls.admission = &admission;
  calls.connection = connection.get();
  calls.at_once = (data[0] & 0x80U) != 0;
  const std::string bytes = bytes_of(data + 1, std::min<std::size_t>(size - 1, 300));
  const std::size_t cut = (data[0] & 0x7FU) == 0 ? bytes.size() : data[0] & 0x7FU;
  feed(*connection, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"sv, 100, calls);
  feed(*connection, bytes, cut, calls);
  connection->end(calls.now);
  for (int turn = 0; turn < 8 && !connection->finished(); ++turn) {
    while (!calls.calls.empty()) {
      calls.answer_one();
    }
    send_all(*connection, calls.now);
    if (const auto due = connection->deadline()) {
      calls.now = std::max(calls.now, *due);
      connection->on_time(calls.now);
      const auto next = connection->deadline();
      require(connection->finished() || !next || *next > calls.now, "a deadline that does not pass");
    }
    send_all(*connection, calls.now);
  }
  require(connection->finished() || !connection->deadline(), "it does not end");
  connection->received_end(true, calls.now);
  require(calls.calls.empty(), "a call is neither answered nor gone");
  calls.connection = nullptr;
  return 0;
}
