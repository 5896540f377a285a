#include "core/serve/tls.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace ortmulti::serve {
namespace {

// OpenSSL's numbers.
constexpr int error_want_read = 2;
constexpr int error_zero_return = 6;

constexpr std::size_t read_size = std::size_t{32} << 10;
constexpr std::size_t record_size = std::size_t{16} << 10;
constexpr std::size_t most_encrypted = std::size_t{64} << 10;  // of the inner connection's bytes, before they are sent
// The output also has answers to messages that clients may repeat, such as requests for new keys. With more bytes than
// this to send, the connection reads nothing.
constexpr std::size_t most_output = 2 * most_encrypted;
constexpr std::size_t parts_at_once = 64;

// The thread's buffer for the connection that reads. It has bytes only from room() to received().
std::span<std::byte> read_buffer() {
  thread_local std::vector<std::byte> buffer(read_size);
  return buffer;
}

class TlsConnection final : public Connection {
 public:
  using Time = Clock::time_point;

  TlsConnection(std::shared_ptr<const TlsContext> context, std::unique_ptr<Connection> inner, const Limits& limits,
                Time now);
  ~TlsConnection() override { openssl_.ssl_free(ssl_); }

  std::span<std::byte> room() override;
  void received(std::size_t bytes, Time now) override;
  void received_end(bool lost, Time now) override;
  std::size_t to_send(std::span<iovec> parts) override;
  void sent(std::size_t bytes, Time now) override;
  void reply(Call& call, Reply reply, Time now) override;
  void end(Time now) override;
  bool finished() const override { return state_ >= State::refused || inner_->finished(); }
  std::optional<Time> deadline() const override;
  void on_time(Time now) override;

 private:
  enum class State : std::uint8_t {
    handshake,
    open,
    refused,  ///< What is encrypted by now, an alert most likely, is sent; nothing more.
    lost,     ///< Nothing is sent.
  };

  std::size_t unsent() const noexcept { return output_.size() - output_sent_; }
  bool shake_hands();
  void decrypt();
  void read_all();
  void encrypt();
  void take_output();
  void fail(State state);

  const std::shared_ptr<const TlsContext> context_;
  const OpenSsl& openssl_;
  const std::unique_ptr<Connection> inner_;
  Ssl* const ssl_;
  Bio* const from_client_;
  Bio* const to_client_;
  const Clock::duration send_;
  const Time handshake_until_;

  State state_ = State::handshake;
  bool stalled_ = false;      ///< The inner connection had no room: there may be bytes that are not decrypted.
  bool client_done_ = false;  ///< It said by TLS that it sends nothing more.
  bool input_ended_ = false;  ///< It sends nothing more, whether it said so or not.
  bool said_done_ = false;    ///< The client was told so.
  std::string output_;        ///< Encrypted.
  std::size_t output_sent_ = 0;
  std::size_t inner_unsent_ = 0;  ///< Of the inner connection's bytes: encrypted, and not counted as sent yet.
  Time now_;
  TakingTime taking_;  ///< Of the output.
};

TlsConnection::TlsConnection(std::shared_ptr<const TlsContext> context, std::unique_ptr<Connection> inner,
                             const Limits& limits, Time now)
    : context_(std::move(context)),
      openssl_(context_->openssl()),
      inner_(std::move(inner)),
      ssl_(openssl_.ssl_new(context_->get())),
      from_client_(openssl_.bio_new(openssl_.bio_s_mem())),
      to_client_(openssl_.bio_new(openssl_.bio_s_mem())),
      send_(duration_of(limits.send)),
      handshake_until_(now + duration_of(limits.receive)),
      now_(now),
      taking_(now) {
  if (ssl_ == nullptr || from_client_ == nullptr || to_client_ == nullptr) {
    openssl_.bio_free(from_client_);  // each of them may be null
    openssl_.bio_free(to_client_);
    openssl_.ssl_free(ssl_);
    throw std::bad_alloc();
  }
  openssl_.ssl_set0_rbio(ssl_, from_client_);
  openssl_.ssl_set0_wbio(ssl_, to_client_);
  openssl_.ssl_set_accept_state(ssl_);
}

std::span<std::byte> TlsConnection::room() {
  const bool reads = !stalled_ && !client_done_ && unsent() <= most_output;
  return reads ? read_buffer() : std::span<std::byte>();
}

void TlsConnection::received(std::size_t bytes, Time now) {
  now_ = now;
  if (state_ >= State::refused) {
    return;
  }
  const int size = static_cast<int>(bytes);
  if (openssl_.bio_write(from_client_, read_buffer().data(), size) != size) {
    throw std::bad_alloc();
  }
  decrypt();
}

void TlsConnection::received_end(bool lost, Time now) {
  now_ = now;
  input_ended_ = true;
  if (lost) {
    fail(State::lost);
  } else {
    decrypt();
  }
}

/// Also answers what TLS itself asks for.
void TlsConnection::decrypt() {
  if (state_ == State::open || shake_hands()) {
    read_all();
  }
  take_output();
}

bool TlsConnection::shake_hands() {
  if (state_ != State::handshake) {
    return false;
  }
  openssl_.err_clear_error();
  const int result = openssl_.ssl_do_handshake(ssl_);
  if (result == 1) {
    state_ = State::open;
  } else if (openssl_.ssl_get_error(ssl_, result) != error_want_read) {
    fail(State::refused);
  } else if (input_ended_) {
    fail(State::lost);
  }
  return state_ == State::open;
}

void TlsConnection::read_all() {
  stalled_ = false;
  while (state_ == State::open && !client_done_) {
    const auto room = inner_->finished() ? std::span<std::byte>() : inner_->room();
    if (room.empty()) {
      stalled_ = true;
      return;
    }
    openssl_.err_clear_error();
    const int got = openssl_.ssl_read(ssl_, room.data(), static_cast<int>(std::min(room.size(), record_size)));
    if (got > 0) {
      inner_->received(static_cast<std::size_t>(got), now_);
      continue;
    }
    const int error = openssl_.ssl_get_error(ssl_, got);
    if (error == error_zero_return) {
      client_done_ = true;
      inner_->received_end(false, now_);
    } else if (error != error_want_read) {
      fail(State::refused);
    } else if (input_ended_) {
      fail(State::lost);  // somebody may have cut off the rest
    } else {
      return;
    }
  }
}

void TlsConnection::fail(State state) {
  state_ = state;
  inner_unsent_ = 0;
  inner_->received_end(true, now_);
}

void TlsConnection::take_output() {
  const std::size_t size = openssl_.bio_ctrl_pending(to_client_);
  if (size > 0 && state_ != State::lost) {
    if (unsent() == 0) {
      taking_.begin(now_);
    }
    const std::size_t before = output_.size();
    output_.resize(before + size);
    openssl_.bio_read(to_client_, output_.data() + before, static_cast<int>(size));
  }
}

/// Encrypts what the inner connection has to send, once what it had before is sent.
void TlsConnection::encrypt() {
  if (state_ != State::open || inner_unsent_ > 0) {
    return;
  }
  std::array<iovec, parts_at_once> parts;  // NOLINT(cppcoreguidelines-pro-type-member-init): the connection fills it
  const std::size_t count = inner_->to_send(parts);
  for (const iovec& part : std::span(parts).first(count)) {
    std::string_view bytes(static_cast<const char*>(part.iov_base), part.iov_len);
    while (!bytes.empty() && inner_unsent_ < most_encrypted) {
      const std::string_view record = bytes.substr(0, std::min(record_size, most_encrypted - inner_unsent_));
      openssl_.err_clear_error();
      if (openssl_.ssl_write(ssl_, record.data(), static_cast<int>(record.size())) <= 0) {
        return fail(State::lost);
      }
      inner_unsent_ += record.size();
      bytes.remove_prefix(record.size());
      take_output();
    }
  }
  if (count == 0 && inner_->finished() && !std::exchange(said_done_, true)) {
    openssl_.err_clear_error();
    openssl_.ssl_shutdown(ssl_);
    take_output();
  }
}

std::size_t TlsConnection::to_send(std::span<iovec> parts) {
  encrypt();
  if (state_ == State::lost || unsent() == 0 || parts.empty()) {
    output_.shrink_to_fit();  // thousands of quiet connections need no memory
    return 0;
  }
  parts.front() = {output_.data() + output_sent_, unsent()};
  return 1;
}

void TlsConnection::sent(std::size_t bytes, Time now) {
  now_ = now;
  taking_.took(bytes, now);
  output_sent_ += std::min(bytes, unsent());
  const std::size_t left = unsent();
  if (left == 0) {
    output_.clear();
    output_sent_ = 0;
  }
  // What is left has no more of the inner connection's bytes than it is long.
  if (inner_unsent_ > left) {
    inner_->sent(std::exchange(inner_unsent_, left) - left, now);
  }
  if (stalled_) {
    decrypt();
  }
}

void TlsConnection::reply(Call& call, Reply reply, Time now) {
  now_ = now;
  inner_->reply(call, std::move(reply), now);
  if (stalled_) {
    decrypt();
  }
}

void TlsConnection::end(Time now) {
  now_ = now;
  inner_->end(now);
  if (state_ == State::handshake) {
    fail(State::refused);
  }
}

std::optional<TlsConnection::Time> TlsConnection::deadline() const {
  std::optional<Time> first;
  if (state_ == State::handshake) {
    first = handshake_until_;
  } else if (state_ == State::open) {
    first = inner_->deadline();
  }
  if (state_ != State::lost && unsent() > 0) {
    first = std::min(first.value_or(Time::max()), taking_.since() + send_);
  }
  return first;
}

void TlsConnection::on_time(Time now) {
  now_ = now;
  if ((unsent() > 0 && now >= taking_.since() + send_) || (state_ == State::handshake && now >= handshake_until_)) {
    fail(State::lost);
  } else if (state_ == State::open) {
    inner_->on_time(now);
    if (stalled_) {
      decrypt();
    }
  }
}

}  // namespace

std::unique_ptr<Connection> make_tls(std::shared_ptr<const TlsContext> context, std::unique_ptr<Connection> inner,
                                     const Limits& limits, Connection::Clock::time_point now) {
  return std::make_unique<TlsConnection>(std::move(context), std::move(inner), limits, now);
}

}  // namespace ortmulti::serve
