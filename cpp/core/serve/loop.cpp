#include "core/serve/loop.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <limits>
#include <system_error>

#include "core/base/error.hpp"
#include "core/pool/pool.hpp"
#include "core/serve/loop_link.hpp"

namespace ortmulti::serve {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t most_accepted = 64;
constexpr std::size_t most_events = 256;
// After so many rounds other work has its turn, however much there is to answer.
constexpr std::size_t rounds_in_turn = 4;
constexpr std::size_t all_rounds = std::numeric_limits<std::size_t>::max();
// How long a process without a free descriptor waits until it tries again to accept.
constexpr auto pause_of_accepting = 50ms;
constexpr auto until_tidy = 10s;
// A connection that is not done with its time when it was told waits so long at least.
constexpr auto least_wait = 1ms;

// Later than any time of a connection.
constexpr auto beyond_all_times = std::chrono::duration_cast<std::chrono::seconds>(2 * Admission::longest_time);

// Keys of events that are no connection's number.
constexpr std::uint64_t of_mailbox = std::uint64_t{1} << 63;
constexpr std::uint64_t of_listener = std::uint64_t{1} << 62;

Socket checked(int descriptor, const char* what) {
  if (descriptor < 0) {
    throw system_error(std::string("the server cannot make ") + what);
  }
  return Socket(descriptor);
}

// "127.0.0.1 51234"; empty for a Unix socket, which has no such address.
std::string described(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* host = nullptr;
  in_port_t port = 0;
  if (address.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    host = &four.sin_addr;
    port = four.sin_port;
  } else if (address.ss_family == AF_INET6) {
    const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
    host = &six.sin6_addr;
    port = six.sin6_port;
  }
  if (host == nullptr || inet_ntop(address.ss_family, host, text.data(), text.size()) == nullptr) {
    return {};
  }
  return std::string(text.data()) + " " + std::to_string(ntohs(port));
}

}  // namespace

bool watch_descriptor(int epoll, int operation, int descriptor, std::uint32_t events, std::uint64_t key) noexcept {
  epoll_event event{};
  event.events = events;
  event.data.u64 = key;
  return epoll_ctl(epoll, operation, descriptor, &event) == 0;
}

Loop::Loop(Owner& owner, Admission& admission, Options options)
    : owner_(owner),
      admission_(admission),
      mailbox_(std::make_shared<Mailbox>()),
      options_(std::move(options)),
      epoll_(checked(epoll_create1(EPOLL_CLOEXEC), "an event loop")),
      end_until_(Clock::time_point::max().time_since_epoch().count()),
      next_(options_.first) {
  if (!watch_descriptor(epoll_.get(), EPOLL_CTL_ADD, mailbox_->descriptor(), EPOLLIN | EPOLLET, of_mailbox)) {
    throw system_error("the server cannot wait for events");
  }
}

Loop::~Loop() {
  end(Clock::time_point::min());
  join();
  mailbox_->close();
}

void Loop::start(std::vector<Loop*> beside) {
  beside_ = std::move(beside);
  watch_listeners();
  try {
    // Without arguments: where no thread can start, libstdc++ would call a function that was moved from.
    thread_ = std::thread([this] { work(); });
  } catch (const std::system_error& error) {
    unwatch_listeners();
    throw Error(ErrorKind::fail, std::string("cannot start a thread for connections: ") + error.what());
  }
}

void Loop::end(Clock::time_point until) noexcept {
  auto known = end_until_.load();
  while (until.time_since_epoch().count() < known &&
         !end_until_.compare_exchange_weak(known, until.time_since_epoch().count())) {
  }
  mailbox_->wake();
}

void Loop::join() {
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Loop::reply(std::shared_ptr<Call> call, Reply reply) { answers_.push_back({std::move(call), std::move(reply)}); }

void Loop::work() noexcept {
  const Pool::NoWaiting by_others;
  now_ = Clock::now();
  for (;;) {
    succeeds([this] { turn(); });  // what a turn did not do is due in the next one
    const Clock::time_point until{Clock::duration(end_until_.load())};
    if (ending_ && (links_.empty() || now_ >= until)) {
      break;
    }
  }
  succeeds([this] { cut_off(); });
  answers_.clear();
  timers_.clear();
  links_.clear();
  mailbox_->close();
}

void Loop::turn() {
  std::array<epoll_event, most_events> events;  // NOLINT(cppcoreguidelines-pro-type-member-init): 3 kB each turn
  const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), patience());
  now_ = Clock::now();
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    succeeds([&] { on_event(event.data.u64, event.events); });
  }
  if (tidy_at_ && now_ >= *tidy_at_) {
    tidy_at_.reset();
    if (!owner_.tidy()) {
      tidy_at_ = now_ + until_tidy;
    }
  } else if (!tidy_at_ && count > 0) {
    tidy_at_ = now_ + until_tidy;
  }
  if (!ending_ && end_until_.load() != Clock::time_point::max().time_since_epoch().count()) {
    begin_end();
  }
  if (accept_again_ && now_ >= *accept_again_) {
    accept_again_.reset();
    if (!succeeds([this] { watch_listeners(); })) {
      pause_accepting();
    }
  }
  on_timers();
  settle(rounds_in_turn);
}

// Milliseconds until there is something to do at a time; -1: there is nothing.
int Loop::patience() const {
  if (!touched_.empty() || !answers_.empty()) {
    return 0;  // left by a turn that had much to answer, or failed
  }
  auto first = Clock::time_point::max();
  if (!timers_.empty()) {
    first = timers_.begin()->first;
  }
  if (accept_again_) {
    first = std::min(first, *accept_again_);
  }
  if (tidy_at_) {
    first = std::min(first, *tidy_at_);
  }
  if (ending_) {
    first = std::min(first, Clock::time_point(Clock::duration(end_until_.load())));
  }
  if (first == Clock::time_point::max()) {
    return -1;
  }
  const Clock::time_point now = Clock::now();
  constexpr auto longest = std::chrono::milliseconds(std::chrono::hours(1));
  return first <= now             ? 0
         : first - now >= longest ? static_cast<int>(longest.count())
                                  : static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(first - now).count());
}

void Loop::on_event(std::uint64_t key, std::uint32_t events) {
  if (key == of_mailbox) {
    take_mail();
  } else if ((key & of_listener) != 0) {
    accept(static_cast<std::size_t>(key & ~of_listener));
  } else if (const auto found = links_.find(key); found != links_.end()) {
    on_link(*found->second, events);
  }
}

void Loop::take_mail() {
  Mailbox::Contents contents = mailbox_->take();
  if (!contents.finished.empty()) {
    owner_.finished(std::move(contents.finished));
  }
  for (const auto& task : contents.tasks) {
    succeeds(task);
  }
}

void Loop::watch_listeners() {
  for (std::size_t i = 0; i < options_.listeners.size(); ++i) {
    if (!watch_descriptor(epoll_.get(), EPOLL_CTL_ADD, options_.listeners[i]->get(), EPOLLIN | EPOLLEXCLUSIVE,
                          of_listener | i) &&
        errno != EEXIST) {
      throw system_error("the server cannot wait for connections");
    }
  }
}

void Loop::unwatch_listeners() {
  for (const auto& listener : options_.listeners) {
    watch_descriptor(epoll_.get(), EPOLL_CTL_DEL, listener->get(), 0, 0);
  }
}

void Loop::pause_accepting() {
  unwatch_listeners();
  accept_again_ = now_ + pause_of_accepting;
}

void Loop::accept(std::size_t listener) {
  for (std::size_t i = 0; i < most_accepted && listener < options_.listeners.size() && !accept_again_; ++i) {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    const int descriptor = accept4(options_.listeners[listener]->get(), reinterpret_cast<sockaddr*>(&address), &length,
                                   SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (descriptor >= 0) {
      Socket socket(descriptor);
      if (auto counted = admission_.connection(); counted != nullptr) {
        place(std::move(socket), described(address), std::move(counted));
      }
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR && errno != ECONNABORTED) {
      // No descriptor is free, most likely. Clients wait; the event, which does not go, must not be looked at.
      pause_accepting();
    }
  }
}

void Loop::place(Socket socket, std::string peer, Admission::Place place) {
  const auto least = std::ranges::min_element(
      beside_, {}, [](const Loop* loop) { return loop->load_.load(std::memory_order_relaxed); });
  if (least == beside_.end() || (*least)->load_.load() >= load_.load()) {
    load_.fetch_add(1);
    open(std::move(socket), std::move(peer), std::move(place));
    return;
  }
  Loop* other = *least;
  other->load_.fetch_add(1);
  other->mailbox_->put([other, socket = std::make_shared<Socket>(std::move(socket)), peer = std::move(peer),
                        place = std::move(place)] { other->open(std::move(*socket), peer, place); });
}

void Loop::open(Socket socket, std::string peer, Admission::Place place) {
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // a Unix socket has no such option
  const std::uint64_t number = next_;
  next_ += options_.step;
  if (peer.empty()) {
    peer = "unix " + std::to_string(number);
  }
  if (ending_ && options_.listeners.empty()) {  // it was on its way here from another loop
    load_.fetch_sub(1);
    return;
  }
  const bool opened = succeeds([&] {
    for (auto* numbers : {&touched_, &settled_}) {
      numbers->reserve(std::bit_ceil(links_.size() + 1));
    }
    auto link = std::make_unique<Link>(number, std::move(socket), owner_.connect(std::move(peer), number, now_),
                                       std::move(place));
    const auto added = links_.emplace(number, std::move(link)).first;
    if (watch_descriptor(epoll_.get(), EPOLL_CTL_ADD, added->second->socket.get(), events_of_reading, number)) {
      touch(*added->second);
    } else {
      close(*added->second);
    }
  });
  if (!opened) {
    load_.fetch_sub(1);
  }
}

void Loop::schedule(Link& link) {
  auto due = link.linger_until ? link.linger_until : link.connection->deadline();
  if (!due) {
    return;  // a timer that is there finds nothing to do
  }
  due = std::max(*due, now_ + least_wait);
  if (!link.has_timer) {
    link.timer = timers_.emplace(*due, &link);
    link.has_timer = true;
  } else if (*due < link.timer->first) {
    auto node = timers_.extract(link.timer);
    node.key() = *due;
    link.timer = timers_.insert(std::move(node));
  }
}

void Loop::on_timers() {
  while (!timers_.empty() && timers_.begin()->first <= now_) {
    Link& link = *timers_.begin()->second;
    timers_.erase(timers_.begin());
    link.has_timer = false;
    touch(link);  // which sets it again
    const auto due = link.linger_until ? link.linger_until : link.connection->deadline();
    if (due && *due <= now_) {
      if (link.linger_until) {
        link.lost = true;
      } else {
        guard(link, [&](Connection& connection) { connection.on_time(now_); });
      }
    }
  }
}

// What is in the sockets by now is read first: whoever sent it could not know of the end.
void Loop::begin_end() {
  ending_ = true;
  beside_.clear();
  succeeds([this] {
    for (std::size_t i = 0; i < options_.listeners.size(); ++i) {
      accept(i);
    }
  });
  unwatch_listeners();
  accept_again_.reset();
  options_.listeners.clear();
  for (const auto& [number, link] : links_) {
    touch(*link);
    if (link->linger_until) {
      link->linger_until = std::min(*link->linger_until, now_ + lingering_at_end);
    } else {
      guard(*link, [&](Connection& connection) {
        if (!link->ended) {
          read(*link, false);
        }
        connection.end(now_);
      });
    }
  }
}

// Tells clients that still wait, as far as sockets take it at once. The owner tells those that wait for an answer. A
// connection tells its client if that has sent a part of a request, since the time for the rest is over.
void Loop::cut_off() {
  owner_.cut_off();
  settle(all_rounds);
  for (const auto& [number, link] : links_) {
    touch(*link);
    guard(*link, [&](Connection& connection) { connection.on_time(now_ + beyond_all_times); });
  }
  settle(all_rounds);
  for (const auto& [number, link] : links_) {
    shutdown(link->socket.get(), SHUT_WR);
    discard(*link);  // what was not read would turn the answer into an error
  }
}

}  // namespace ortmulti::serve
