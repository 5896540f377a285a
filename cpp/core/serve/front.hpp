#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/non_copyable.hpp"
#include "core/serve/admission.hpp"
#include "core/serve/call.hpp"
#include "core/serve/infer.hpp"
#include "core/serve/limits.hpp"

namespace ortmulti::serve {

/// A server of models: event loops for HTTP and gRPC, each with a thread of its own. `infer` of models that it knows
/// and health are answered here; all else is handed to `other`.
class Front : NonCopyable {
 public:
  struct Options {
    Limits limits;
    std::string token;  ///< Clients send it as "authorization: Bearer TOKEN", but for health; empty: none is needed.
    std::vector<std::string> allowed_hosts;  ///< Names by which clients may ask, but for health; none: any.
    std::string certificate;  ///< Files of TLS, of both protocols, in PEM: a chain and its key. Empty: plain.
    std::string key;
    /// An answer of infer with so many bytes is handed to `other` where its client accepts gzip or deflate, to be
    /// compressed: Call::plain.
    std::size_t compressed_from = std::numeric_limits<std::size_t>::max();
    /// Paths of HTTP without slashes at their ends. What is posted there may be as long as the JSON of infer; other
    /// bodies that `other` gets are short.
    std::vector<std::string> long_bodies;
    std::size_t loops = 1;  ///< Event loops of each protocol.
    bool access_log = false;
    bool traces = false;  ///< Calls that say which trace they belong to are handed to `other`, too.
    /// Called by the thread of a loop, for a call that is not answered here, and must not wait: has another thread call
    /// reply() once.
    std::function<void(std::shared_ptr<Call>)> other;
    /// Called as a client goes whose call `other` has, and where the server ends before its answer. In that loop's
    /// thread.
    std::function<void(const std::shared_ptr<Call>&)> gone;
    /// Called with the answer to a call that ask() got. In the thread of a loop.
    std::function<void(std::shared_ptr<Call>, Reply)> answered;
  };
  /// An answer, for the log. Of HTTP, the path is decoded.
  struct Access {
    std::chrono::system_clock::time_point at;
    std::string peer, method, path;
    std::string id;  ///< Call::shown_id().
    int status = 0;
    std::size_t bytes = 0;
    double seconds = 0;
  };

  /// Takes listening sockets, which it closes, also where it throws: those of HTTP and those of gRPC. All loops of a
  /// protocol accept from all of them, and share the connections evenly. Throws Error.
  Front(Options options, const std::vector<int>& http, const std::vector<int>& grpc);
  /// Ends the server as end() does, without waiting for requests under way.
  ~Front();

  ServedModels& models() noexcept;
  /// Whether all models are there: what /v2/health/ready and gRPC's health services say.
  void set_ready(bool ready) noexcept;
  /// Answers a call that `other` got. Any thread may call it, also after the end.
  void reply(const std::shared_ptr<Call>& call, Reply reply);

  /// Has a thread beside the loops do it; dropped after the end. It must not throw. False: no thread can start.
  bool work(std::function<void()> task);

  // Calls that another server received. They are admitted and answered as those of connections, but not counted in
  // answers(), nor logged. Any thread may call these.
  /// A call without a body. It may outlive this.
  std::shared_ptr<Call> call(Protocol protocol);
  /// A call in the place of another one, which is kept meanwhile: without content coding, and with its body. Or else
  /// with another body of this size, which begin() looks at.
  std::shared_ptr<Call> instead_of(Call& other, std::optional<std::size_t> size);
  /// Its headers are there. A reply: it is refused, and its body is not wanted.
  std::unique_ptr<Reply> begin(Call& call);
  /// More of its body. A reply: it is refused.
  std::unique_ptr<Reply> receive(Call& call, std::string_view bytes);
  /// All of it is there. Its answer goes to `answered`. Or else the call goes to `other`, without reply() after it:
  /// then it may be asked again.
  void ask(std::shared_ptr<Call> call);
  /// Nobody waits for its answer any more.
  void forget(std::shared_ptr<Call> call);

  /// Reads the files of TLS again, for connections that come from now on. Any thread may call it. Throws Error where
  /// they cannot be used; then those that were read before stay.
  void renew_certificate();

  /// Accepts no more connections; what a byte was read of is answered, for limits.end at most, and then cut off.
  /// Returns when all threads have ended. Any thread may call it but those of loops, also twice.
  void end();

  /// How many answers, by protocol and code: {"http", "200"}, {"grpc", "OK"}.
  std::map<std::pair<std::string, std::string>, std::uint64_t> answers() const;
  /// What came since the last call, at most some thousands; only with `access_log`.
  std::vector<Access> take_access_log();
  const Admission& admission() const noexcept;

 private:
  struct State;

  std::shared_ptr<State> state_;  // shared with an end() that still runs
};

}  // namespace ortmulti::serve
