#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/non_copyable.hpp"
#include "core/pool/request.hpp"
#include "core/serve/admission.hpp"
#include "core/serve/call.hpp"
#include "core/serve/connection.hpp"
#include "core/serve/mailbox.hpp"

namespace ortmulti::serve {

/// A thread that waits for many sockets at once: it accepts connections, reads and writes them, and keeps their times.
class Loop : NonCopyable {
 public:
  using Clock = Connection::Clock;

  /// What its owner does, in its thread.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual std::unique_ptr<Connection> connect(std::string peer, std::uint64_t number, Clock::time_point now) = 0;
    virtual void finished(Requests requests) = 0;
    /// The time to end is over: what is under way is answered now, by reply().
    virtual void cut_off() = 0;
    /// Called some seconds after something happened, however much happens: memory that is not needed any more may be
    /// given back. False: it is to be called again.
    virtual bool tidy() = 0;
  };
  struct Options {
    std::vector<std::shared_ptr<const Socket>> listeners;  ///< They do not block. Other loops may have them too.
    std::uint64_t first = 0;                               ///< Connections have the numbers first, first + step, ...
    std::uint64_t step = 1;
  };

  /// Throws Error. Nothing is accepted before start().
  Loop(Owner& owner, Admission& admission, Options options);
  ~Loop();

  /// `beside`: loops of the same protocol, of which the one with the fewest connections gets a new one. They live as
  /// long as this one runs. Throws Error where no thread can start.
  void start(std::vector<Loop*> beside);
  /// Closes what it listens to. Its connections end when they are done; at `until` at the latest it cuts them off. An
  /// earlier time may follow. Any thread may call it.
  void end(Clock::time_point until) noexcept;
  /// Waits for the end. Called by one thread.
  void join();

  const std::shared_ptr<Mailbox>& mailbox() const noexcept { return mailbox_; }

  /// Gives an answer to its connection, if that is still there, when this turn's reading is done. Only in its thread.
  void reply(std::shared_ptr<Call> call, Reply reply);
  /// The time when this turn began. Only in its thread.
  Clock::time_point now() const noexcept { return now_; }

 private:
  struct Link;
  using Timers = std::multimap<Clock::time_point, Link*>;
  struct Answer {
    std::shared_ptr<Call> call;
    Reply reply;
  };

  void work() noexcept;
  void turn();
  int patience() const;
  void on_event(std::uint64_t key, std::uint32_t events);
  void take_mail();

  void watch_listeners();
  void unwatch_listeners();
  void pause_accepting();
  void accept(std::size_t listener);
  void place(Socket socket, std::string peer, Admission::Place place);
  void open(Socket socket, std::string peer, Admission::Place place);

  void on_link(Link& link, std::uint32_t events);
  void read(Link& link, bool ended);
  void discard(Link& link);
  /// Writes what is there. Returns how many bytes went.
  std::size_t write(Link& link);
  /// Calls a connection, which may fail for lack of memory: then it is closed.
  void guard(Link& link, const auto& call);

  void touch(Link& link) noexcept;
  void deliver();
  /// Delivers answers and writes. What clients have sent may be answered at once then, in the next round.
  void settle(std::size_t most_rounds);
  void settle(Link& link);
  void watch(Link& link);
  static void await_bytes(Link& link);
  void linger(Link& link);
  void close(Link& link);

  void schedule(Link& link);
  void on_timers();

  void begin_end();
  void cut_off();

  Owner& owner_;
  Admission& admission_;
  const std::shared_ptr<Mailbox> mailbox_;
  Options options_;
  Socket epoll_;
  std::vector<Loop*> beside_;
  std::atomic<std::size_t> load_{0};  // connections, and those on their way here
  std::atomic<Clock::time_point::rep> end_until_;
  bool ending_ = false;

  Clock::time_point now_;
  std::optional<Clock::time_point> tidy_at_;
  std::optional<Clock::time_point> accept_again_;  // no listener is watched until then
  std::uint64_t next_ = 0;
  std::unordered_map<std::uint64_t, std::unique_ptr<Link>> links_;
  Timers timers_;
  std::vector<std::uint64_t> touched_;  // it and the next one have room for all connections
  std::vector<std::uint64_t> settled_;
  std::vector<Answer> answers_;
  std::vector<Answer> delivered_;

  std::thread thread_;
};

}  // namespace ortmulti::serve
