#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <span>

#include "core/serve/loop_link.hpp"

namespace ortmulti::serve {
namespace {

// The most bytes of one connection in a turn, so that other connections have their turns soon.
constexpr std::size_t most_read_in_turn = std::size_t{256} << 10;
constexpr std::size_t most_written_in_turn = std::size_t{1} << 20;
constexpr std::uint64_t most_awaited = std::uint64_t{128} << 10;
constexpr std::size_t parts_at_once = 64;
// A client that still sends is given its answer: what it sends is read for so long before the socket is closed, which
// would tell it of an error alone.
constexpr std::chrono::seconds most_lingering{5};

}  // namespace

void Loop::on_link(Link& link, std::uint32_t events) {
  touch(link);
  if (link.linger_until) {
    discard(link);
  } else if ((events & (EPOLLERR | EPOLLHUP)) != 0) {
    link.lost = true;
  } else if ((events & events_of_reading) != 0 && !link.ended) {
    guard(link, [&](Connection&) { read(link, (events & EPOLLRDHUP) != 0); });
  }
}

void Loop::read(Link& link, bool ended) {
  Connection& connection = *link.connection;
  for (std::size_t left = most_read_in_turn; left > 0;) {
    const auto room = connection.finished() ? std::span<std::byte>() : connection.room();
    if (room.empty()) {
      link.paused = true;
      link.ended = ended;
      break;
    }
    const std::size_t wanted = std::min(room.size(), left);
    const ssize_t got = recv(link.socket.get(), room.data(), wanted, 0);
    if (got > 0) {
      connection.received(static_cast<std::size_t>(got), now_);
      left -= static_cast<std::size_t>(got);
      if (static_cast<std::size_t>(got) < wanted && !ended) {
        return;
      }
    } else if (got == 0) {
      link.ended = true;
      break;
    } else if (errno != EINTR) {
      link.lost = errno != EAGAIN && errno != EWOULDBLOCK;
      return;
    }
  }
  if (link.ended) {
    connection.received_end(false, now_);
  }
}

void Loop::discard(Link& link) {
  std::array<char, std::size_t{64} << 10> unread;  // NOLINT(cppcoreguidelines-pro-type-member-init): nobody reads it
  for (std::size_t left = most_read_in_turn; left >= unread.size(); left -= unread.size()) {
    const ssize_t got = recv(link.socket.get(), unread.data(), unread.size(), 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
      link.lost = true;
    }
    if (got < static_cast<ssize_t>(unread.size())) {
      return;
    }
  }
}

std::size_t Loop::write(Link& link) {
  std::array<iovec, parts_at_once> parts;  // NOLINT(cppcoreguidelines-pro-type-member-init): the connection fills it
  std::size_t written = 0;
  while (!link.lost) {
    const std::size_t count = link.connection->to_send(parts);
    link.unsent = count > 0;
    if (!link.unsent || written >= most_written_in_turn) {
      break;
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    std::size_t wanted = 0;
    for (std::size_t i = 0; i < count; ++i) {
      wanted += parts[i].iov_len;
    }
    const ssize_t sent = sendmsg(link.socket.get(), &message, MSG_NOSIGNAL);
    if (sent >= 0) {
      written += static_cast<std::size_t>(sent);
      link.connection->sent(static_cast<std::size_t>(sent), now_);
      if (static_cast<std::size_t>(sent) < wanted) {
        break;
      }
    } else if (errno != EINTR) {
      link.lost = errno != EAGAIN && errno != EWOULDBLOCK;
      break;
    }
  }
  return written;
}

void Loop::touch(Link& link) noexcept {
  if (!link.touched) {
    touched_.push_back(link.number);  // which has room
    link.touched = true;
  }
}

void Loop::deliver() {
  delivered_.swap(answers_);  // more may come meanwhile: of a stream, the next one
  for (Answer& next : delivered_) {
    Answer answer = std::move(next);
    const auto found = links_.find(answer.call->connection);
    if (found != links_.end() && !found->second->linger_until) {
      Link& link = *found->second;
      touch(link);
      guard(link, [&](Connection& connection) { connection.reply(*answer.call, std::move(answer.reply), now_); });
    }
  }
  delivered_.clear();
}

void Loop::settle(std::size_t most_rounds) {
  for (std::size_t round = 0; round < most_rounds && (!answers_.empty() || !touched_.empty()); ++round) {
    deliver();
    settled_.swap(touched_);
    for (const std::uint64_t number : settled_) {
      if (const auto found = links_.find(number); found != links_.end()) {
        found->second->touched = false;
        if (!succeeds([&] { settle(*found->second); })) {
          close(*found->second);
        }
      }
    }
    settled_.clear();
  }
}

void Loop::settle(Link& link) {
  if (!link.linger_until) {
    std::size_t written = 0;
    guard(link, [&](Connection& connection) {
      written = write(link);
      if (connection.finished() && !link.unsent) {
        if (written > 0) {
          linger(link);
        } else {
          link.lost = true;
        }
      } else if (link.ended && !link.unsent) {
        link.lost = true;  // it waits for answers, and most likely nobody waits for these
      } else if (link.paused && !link.ended && !connection.finished()) {
        link.paused = connection.room().empty();
      }
    });
  }
  if (link.lost) {
    close(link);
    return;
  }
  watch(link);
  await_bytes(link);
  schedule(link);
}

void Loop::watch(Link& link) {
  std::uint32_t events = link.unsent ? EPOLLOUT : 0U;
  if (!link.ended) {
    events |= link.paused ? EPOLLRDHUP : events_of_reading;
  }
  if (events != link.watched) {
    link.watched = events;
    watch_descriptor(epoll_.get(), EPOLL_CTL_MOD, link.socket.get(), events, link.number);
  }
}

// A large body that arrives in small pieces would wake the loop for each.
void Loop::await_bytes(Link& link) {
  const auto bytes = static_cast<int>(std::min<std::uint64_t>(link.connection->awaited(), most_awaited));
  if (bytes != link.awaited) {
    link.awaited = bytes;
    setsockopt(link.socket.get(), SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
  }
}

void Loop::linger(Link& link) {
  shutdown(link.socket.get(), SHUT_WR);
  link.linger_until = now_ + (ending_ ? Clock::duration(lingering_at_end) : Clock::duration(most_lingering));
  link.paused = link.ended = false;
}

void Loop::close(Link& link) {
  guard(link, [&](Connection& connection) { connection.received_end(true, now_); });
  if (link.has_timer) {
    timers_.erase(link.timer);
  }
  watch_descriptor(epoll_.get(), EPOLL_CTL_DEL, link.socket.get(), 0, 0);  // a forked child may have it open
  links_.erase(link.number);
  load_.fetch_sub(1);
}

}  // namespace ortmulti::serve
