#include <algorithm>
#include <charconv>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/base/text.hpp"
#include "core/serve/connection.hpp"
#include "core/serve/http1.hpp"
#include "core/serve/http1_answer.hpp"
#include "core/serve/http1_input.hpp"

namespace ortmulti::serve {
namespace {

constexpr std::size_t input_size = Http1Input::first_capacity;
constexpr std::size_t most_read = std::size_t{512} << 10;  ///< At a time, so that other connections have their turn.
constexpr std::size_t small_head = 4096;                   ///< Is not counted: health is answered without a budget too.
constexpr std::chrono::seconds linger{2};
// At the end a client may be sending its next request, which would be lost if the connection closed at once.
constexpr std::chrono::milliseconds last_chance{250};

std::optional<unsigned> hexadecimal(std::string_view text) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return error == std::errc() && end == text.data() + 2 ? std::optional(value) : std::nullopt;
}

std::string decoded(std::string_view path) {
  std::string out;
  out.reserve(path.size());
  for (std::size_t i = 0; i < path.size(); ++i) {
    const auto code = path[i] == '%' && i + 2 < path.size() ? hexadecimal(path.substr(i + 1, 2)) : std::nullopt;
    out += code ? static_cast<char>(*code) : path[i];
    i += code ? 2 : 0;
  }
  return out;
}

/// Whether a name stands for this machine whatever a name server says.
bool is_local(std::string_view host) {
  const std::string_view name = host.substr(0, host.find(':'));
  return host.starts_with('[') || name == "localhost" || name.ends_with(".localhost") ||
         name.find_first_not_of("0123456789.") == std::string_view::npos;
}

/// Whether a browser sends it for a page of somebody else: a page of another site, or of a name that a stranger made an
/// address of this machine (DNS rebinding).
bool of_foreign_page(const Headers& headers, std::string_view peer) {
  const std::string* const site = find(headers, "sec-fetch-site");
  if (site != nullptr && *site == "cross-site") {
    return true;
  }
  const std::string* const origin = find(headers, "origin");
  if (origin == nullptr) {
    return false;
  }
  const std::string* const given = find(headers, "host");
  const std::string host = lower_case(given == nullptr ? "" : *given);
  const std::size_t scheme = origin->find("://");
  if (scheme == std::string::npos || lower_case(origin->substr(scheme + 3)) != host) {
    return true;
  }
  const bool loopback = peer.starts_with("127.") || peer.starts_with("::1 ") || peer.starts_with("::ffff:127.");
  return loopback && !is_local(host);
}

/// One request at a time: it is received, is with the router, and its answer is sent; then comes the next one.
class Http1Connection final : public Connection {
 public:
  Http1Connection(const Shared& shared, std::string peer, std::uint64_t number, Clock::time_point now)
      : shared_(shared),
        limits_(shared.admission.limits()),
        peer_(std::move(peer)),
        number_(number),
        parser_(limits_.header),
        bytes_(shared.admission),
        idle_until_(now + duration_of(limits_.idle)),
        taking_(now) {}

  std::span<std::byte> room() override;
  std::uint64_t awaited() const override { return state_ == State::receiving && direct() ? parser_.run() : 1; }
  void received(std::size_t bytes, Clock::time_point now) override;
  void received_end(bool lost, Clock::time_point now) override;
  std::size_t to_send(std::span<iovec> parts) override { return output_.parts(parts); }
  void sent(std::size_t bytes, Clock::time_point now) override;
  void reply(Call& call, Reply reply, Clock::time_point now) override;
  void end(Clock::time_point now) override;
  bool finished() const override { return state_ == State::done; }
  std::optional<Clock::time_point> deadline() const override;
  void on_time(Clock::time_point now) override;

 private:
  enum class State : std::uint8_t {
    receiving,  ///< A request, or waiting for one.
    routed,     ///< The router has it.
    sending,    ///< Its answer.
    draining,   ///< A refusal, while the rest of the request is discarded: unread bytes would have the system reset the
                ///< connection, and the client lose the answer.
    done,
  };

  /// Whether the next bytes are read into the body's own memory.
  bool direct() const noexcept { return input_.empty() && parser_.run() >= input_size; }
  bool begun() const noexcept { return parser_.begun() || !input_.empty(); }
  void parse(Clock::time_point now);
  void parse_all(Clock::time_point now);
  void begin_call(Clock::time_point now);
  bool count(std::size_t unread) noexcept;
  void expect_body(Clock::time_point now);
  void finish_call();
  void answer(Reply reply, bool received, Clock::time_point now);
  void refuse(int status, std::string_view text, Clock::time_point now) {
    shared_.router.answered_itself(status);
    answer(refusal(Protocol::http, status, text, call_ ? call_->path : parser_.head().path), false, now);
  }
  void cut_off();
  void settle() noexcept;

  const Shared shared_;
  const Limits& limits_;
  const std::string peer_;
  const std::uint64_t number_;
  Http1Input input_;
  Http1Parser parser_;
  Http1Output output_;
  std::shared_ptr<Call> call_;  ///< Until it is answered.
  Admission::Bytes bytes_;      ///< Of the request, or its answer.
  State state_ = State::receiving;
  bool closes_ = false;  ///< After this answer.
  bool ending_ = false;  ///< No further request is begun.
  bool last_ = false;    ///< This request is the last one.
  bool received_end_ = false;
  std::size_t discarded_ = 0;
  Clock::time_point idle_until_;
  std::optional<Clock::time_point> receive_until_;  ///< Of a request that has begun.
  TakingTime taking_;                               ///< Of the output.
  Clock::time_point linger_until_;
};

std::span<std::byte> Http1Connection::room() {
  switch (state_) {
    case State::receiving:
      return direct() ? call_->body.room(static_cast<std::size_t>(std::min<std::uint64_t>(parser_.run(), most_read)))
                      : input_.room();
    case State::routed:
    case State::sending:
      return !ending_ && input_.size() < input_size / 2 ? input_.room() : std::span<std::byte>();
    case State::draining:
      return input_.room();
    default:
      return {};
  }
}

void Http1Connection::received(std::size_t bytes, Clock::time_point now) {
  if (state_ == State::receiving && direct()) {
    call_->body.wrote(bytes);
    parser_.skip(bytes);
  } else {
    input_.wrote(bytes);
  }
  if (state_ == State::receiving) {
    last_ = last_ || ending_;
    parse(now);
  } else if (state_ == State::draining) {
    discarded_ += bytes;
    settle();
  }
}

void Http1Connection::received_end(bool lost, Clock::time_point now) {
  received_end_ = true;
  if (lost) {
    cut_off();
  } else if (state_ == State::receiving) {
    parse(now);
  } else if (state_ == State::draining) {
    settle();
  }
}

void Http1Connection::parse(Clock::time_point now) {
  try {
    parse_all(now);
  } catch (const std::bad_alloc&) {
    if (state_ != State::receiving) {
      throw;
    }
    refuse(503, "the server has no memory for this request", now);
  }
}

void Http1Connection::parse_all(Clock::time_point now) {
  while (state_ == State::receiving) {
    std::string_view rest = input_.view();
    const Http1Parser::Event event = parser_.next(rest);
    std::size_t read = input_.size() - rest.size();
    const std::string_view piece = event == Http1Parser::Event::body ? parser_.piece() : std::string_view();
    if (event == Http1Parser::Event::head) {
      input_.drop(std::exchange(read, 0));
      begin_call(now);
      if (state_ != State::receiving) {
        return;
      }
    }
    if (call_ != nullptr && parser_.run() + piece.size() > limits_.body - call_->body.size()) {
      return refuse(413, "the request's body is larger than " + std::to_string(limits_.body) + " bytes", now);
    }
    if (!piece.empty()) {
      call_->body.append(piece);
    }
    input_.drop(read);
    if (!count(event == Http1Parser::Event::more ? input_.size() : 0)) {
      return refuse(503, "the server has no memory left for requests, try again later", now);
    }
    switch (event) {
      case Http1Parser::Event::head:
        expect_body(now);
        break;
      case Http1Parser::Event::body:
        break;
      case Http1Parser::Event::end:
        finish_call();
        return;
      case Http1Parser::Event::error:
        return refuse(parser_.status(), parser_.problem(), now);
      default:
        if (!begun()) {
          receive_until_.reset();
        } else if (!receive_until_) {
          receive_until_ = now + duration_of(limits_.receive);
        }
        if (received_end_ || (ending_ && !begun())) {
          state_ = State::done;
        }
        return;
    }
  }
}

void Http1Connection::begin_call(Clock::time_point now) {
  Http1Parser::Head& head = parser_.head();
  call_ = std::make_shared<Call>(Protocol::http, shared_.buffers, shared_.admission);
  call_->method = std::move(head.method);
  call_->path = decoded(head.path);
  call_->query = std::move(head.query);
  call_->headers = std::move(head.headers);
  call_->peer = peer_;
  call_->connection = number_;
  std::unique_ptr<Reply> reply;
  if (of_foreign_page(call_->headers, peer_)) {
    shared_.router.answered_itself(403);
    constexpr std::string_view problem = "requests of web pages of another site are refused";
    reply = std::make_unique<Reply>(refusal(Protocol::http, 403, problem, call_->path));
  } else {
    reply = shared_.router.begin(*call_);
  }
  if (reply != nullptr) {
    answer(std::move(*reply), !head.has_body(), now);
  }
}

/// Counts the memory of the request that arrives; `unread`: of a line whose end is missing. False: the budget has not
/// so much.
bool Http1Connection::count(std::size_t unread) noexcept {
  const std::size_t head = parser_.lines() + unread;
  return bytes_.grow_to((head > small_head ? head : 0) + (call_ == nullptr ? 0 : call_->body.resident()));
}

void Http1Connection::expect_body(Clock::time_point now) {
  const Http1Parser::Head& head = parser_.head();
  if (const auto size = number_in(call_->headers, "inference-header-content-length")) {
    call_->body.align(*size);  // so that the tensors behind it are used where they are
  }
  if (head.length > 0) {  // memory takes no room before something is written there
    call_->body.room(static_cast<std::size_t>(head.length));
  }
  if (head.expects_continue && head.has_body()) {
    taking_.begin(now);
    output_.add_continue();
  }
}

void Http1Connection::finish_call() {
  receive_until_.reset();
  call_->bytes = std::move(bytes_);
  state_ = State::routed;
  shared_.router.finish(call_);
}

void Http1Connection::reply(Call& call, Reply reply, Clock::time_point now) {
  if (state_ == State::routed && &call == call_.get()) {
    bytes_ = std::move(call.bytes);
    answer(std::move(reply), true, now);
  }
}

/// `received`: the request is all there.
void Http1Connection::answer(Reply reply, bool received, Clock::time_point now) {
  const Http1Parser::Head& head = parser_.head();
  const bool without_body = call_ != nullptr && call_->method == "HEAD";
  call_.reset();
  receive_until_.reset();
  if (!received) {
    input_.drop(input_.size());
  }
  closes_ = !received || !head.keep_alive || last_ || (ending_ && input_.empty());
  if (output_.empty()) {
    taking_.begin(now);
  }
  bytes_.set(without_body ? 0 : reply.size());
  output_.add(std::move(reply), {.without_body = without_body,
                                 .close = closes_ && (!head.http_1_0 || head.keep_alive),
                                 .keep_alive = !closes_ && head.http_1_0});
  state_ = received ? State::sending : State::draining;
  linger_until_ = now + linger;
  settle();
}

void Http1Connection::sent(std::size_t bytes, Clock::time_point now) {
  output_.sent(bytes);
  taking_.took(bytes, now);
  if (!output_.empty()) {
    return;
  }
  if (state_ == State::draining) {
    bytes_.resize_down(0);
    linger_until_ = now + linger;
  } else if (state_ == State::sending) {
    bytes_.resize_down(0);
    if (closes_) {
      state_ = State::done;
      return;
    }
    parser_ = Http1Parser(limits_.header);
    idle_until_ = now + duration_of(limits_.idle);
    state_ = State::receiving;
    parse(now);
  }
}

void Http1Connection::end(Clock::time_point now) {
  ending_ = true;
  idle_until_ = std::min(idle_until_, now + last_chance);
}

std::optional<Connection::Clock::time_point> Http1Connection::deadline() const {
  std::optional<Clock::time_point> first;
  if (!output_.empty()) {
    first = taking_.since() + duration_of(limits_.send);
  }
  if (state_ == State::receiving) {
    const Clock::time_point due = receive_until_.value_or(idle_until_);
    first = std::min(first.value_or(due), due);
  }
  return state_ == State::draining && !first ? linger_until_ : first;
}

void Http1Connection::on_time(Clock::time_point now) {
  if (!output_.empty() && now >= taking_.since() + duration_of(limits_.send)) {
    cut_off();
  } else if (state_ == State::receiving && receive_until_ && now >= *receive_until_) {
    ending_ ? refuse(503, "the server ends, and the request has not arrived", now)
            : refuse(408, "the request took too long to arrive", now);
  } else if ((state_ == State::receiving && !receive_until_ && now >= idle_until_) ||
             (state_ == State::draining && output_.empty() && now >= linger_until_)) {
    state_ = State::done;
  }
}

void Http1Connection::cut_off() {
  output_.clear();
  const std::shared_ptr<Call> call = std::move(call_);
  if (std::exchange(state_, State::done) == State::routed) {
    shared_.router.gone(call);
  }
}

/// Discards what was read, and ends that once it was enough.
void Http1Connection::settle() noexcept {
  if (state_ == State::draining) {
    input_.drop(input_.size());
    if (received_end_ || discarded_ > limits_.body) {
      state_ = State::done;
    }
  }
}

}  // namespace

std::unique_ptr<Connection> make_http1(const Shared& shared, std::string peer, std::uint64_t number,
                                       Connection::Clock::time_point now) {
  return std::make_unique<Http1Connection>(shared, std::move(peer), number, now);
}

}  // namespace ortmulti::serve
