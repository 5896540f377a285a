#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
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
    std::size_t loops = 1;  ///< Event loops of each protocol.
    bool access_log = false;
    bool traces = false;  ///< Calls that say which trace they belong to are handed to `other`, too.
    /// Called by the thread of a loop, for a call that is not answered here, and must not wait: has another thread call
    /// reply() once.
    std::function<void(std::shared_ptr<Call>)> other;
    /// Called as a client goes whose call `other` has, and where the server ends before its answer. In that loop's
    /// thread.
    std::function<void(const std::shared_ptr<Call>&)> gone;
  };
  /// An answer, for the log. Of HTTP, the path is decoded.
  struct Access {
    std::string peer, method, path;
    int status = 0;
    std::size_t bytes = 0;
    double seconds = 0;
  };

  /// Takes listening sockets, which it closes, also where it throws: those of HTTP and those of gRPC. All loops of a
  /// protocol accept from all of them, and share the connections evenly. Throws Error.
  Front(Options options, const std::vector<int>& http, const std::vector<int>& grpc);
  /// As end(), without waiting for what is under way.
  ~Front();

  ServedModels& models() noexcept;
  /// Whether all models are there: what /v2/health/ready and gRPC's health services say.
  void set_ready(bool ready) noexcept;
  /// Answers a call that `other` got. Any thread may call it, also after the end.
  void reply(const std::shared_ptr<Call>& call, Reply reply);

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
