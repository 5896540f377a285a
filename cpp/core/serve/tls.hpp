#pragma once

#include <memory>
#include <string>

#include "core/base/non_copyable.hpp"
#include "core/serve/connection.hpp"
#include "core/serve/limits.hpp"
#include "core/serve/openssl.hpp"

namespace ortmulti::serve {

/// What connections with TLS share: a certificate, its key and the protocol in them. TLS 1.2 and newer.
class TlsContext : NonCopyable {
 public:
  /// `certificate`: a file in PEM form, the server's certificate first, then those that vouch for it. `key`: the file
  /// of its private key in PEM form, without a password. `protocol`: as ALPN names it, "http/1.1" or "h2"; clients that
  /// offer only others are refused, those that offer none may speak it. Throws Error with ErrorKind::invalid_argument,
  /// and ErrorKind::library where OpenSSL is missing.
  TlsContext(const std::string& certificate, const std::string& key, const std::string& protocol);

  const OpenSsl& openssl() const noexcept { return openssl_; }
  SslContext* get() const noexcept { return context_.get(); }

 private:
  void load(const std::string& certificate, const std::string& key);

  const OpenSsl& openssl_;
  std::string protocol_;  ///< Behind a byte that says how long it is.
  std::unique_ptr<SslContext, decltype(OpenSsl::ssl_ctx_free)> context_;
};

/// A connection that has `inner` in TLS. What `inner` sends counts as sent when the client takes it, so what its
/// to_send() has said must stay. `limits`: as Admission has them. Throws std::bad_alloc.
std::unique_ptr<Connection> make_tls(std::shared_ptr<const TlsContext> context, std::unique_ptr<Connection> inner,
                                     const Limits& limits, Connection::Clock::time_point now);

}  // namespace ortmulti::serve
