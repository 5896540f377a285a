#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "core/serve/loop.hpp"

namespace ortmulti::serve {

/// Whether it threw nothing. What throws in a loop is lack of memory.
bool succeeds(const auto& call) noexcept {
  try {
    call();
    return true;
  } catch (...) {
    return false;
  }
}

bool watch_descriptor(int epoll, int operation, int descriptor, std::uint32_t events, std::uint64_t key) noexcept;

constexpr std::uint32_t events_of_reading = EPOLLIN | EPOLLRDHUP;
/// How long the ending server reads what a client still sends when its connection is done.
constexpr std::chrono::milliseconds lingering_at_end{500};

/// A connection with its socket.
struct Loop::Link {
  Link(std::uint64_t called, Socket open, std::unique_ptr<Connection> made, Admission::Place counted)
      : number(called), socket(std::move(open)), connection(std::move(made)), place(std::move(counted)) {}

  const std::uint64_t number;
  const Socket socket;
  const std::unique_ptr<Connection> connection;
  const Admission::Place place;
  Timers::iterator timer;
  bool has_timer = false;
  std::uint32_t watched = events_of_reading;
  int awaited = 1;  // bytes, of which the event tells
  bool touched = false;
  bool paused = false;  // it had no room for what is there
  bool ended = false;   // its client sends nothing more
  bool unsent = false;
  bool lost = false;
  std::optional<Clock::time_point> linger_until;
};

void Loop::guard(Link& link, const auto& call) {
  if (!succeeds([&] { call(*link.connection); })) {
    link.lost = true;
  }
}

}  // namespace ortmulti::serve
